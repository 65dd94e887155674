import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import type { AcceptedUpload } from "@/api/types";
import { upload } from "@/api/upload";

interface NewVersion {
  name: string;
  /** A zip or tar, or adapter_config.json with adapter_model.safetensors. */
  files: readonly File[];
}

/** `progress` is the share sent, 0 to 1; leaving the page, or `cancel`, stops the upload. */
export function useUploadAdapter(tenantId: string) {
  const client = useQueryClient();
  const [progress, setProgress] = useState(0);
  const running = useRef<AbortController>(null);
  const cancel = () => running.current?.abort();
  useEffect(() => cancel, []);

  const mutation = useMutation({
    mutationFn: async ({ name, files }: NewVersion) => {
      running.current = new AbortController();
      setProgress(0);
      const form = new FormData();
      form.append("name", name);
      for (const file of files) form.append("files", file, file.name);
      const answer = await upload({
        url: `/api/v1/tenants/${tenantId}/adapters`,
        form,
        onProgress: setProgress,
        signal: running.current.signal,
      });
      return answer as AcceptedUpload;
    },
    onSuccess: () => client.invalidateQueries({ queryKey: ["adapters", tenantId] }),
  });
  return { ...mutation, progress, cancel };
}

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import { type NewUpload, uploadResumably } from "@/api/resumable-upload";

/** `progress` is the share sent, 0 to 1; leaving the page, or `cancel`, stops the upload. */
export function useUploadAdapter(tenantId: string) {
  const client = useQueryClient();
  const [progress, setProgress] = useState(0);
  const running = useRef<AbortController>(null);
  const cancel = () => running.current?.abort();
  useEffect(() => cancel, []);

  const mutation = useMutation({
    mutationFn: (version: Omit<NewUpload, "tenantId">) => {
      running.current = new AbortController();
      setProgress(0);
      return uploadResumably({ ...version, tenantId }, { onProgress: setProgress, signal: running.current.signal });
    },
    onSuccess: () => client.invalidateQueries({ queryKey: ["adapters", tenantId] }),
  });
  return { ...mutation, progress, cancel };
}

import { useMutation, useQueryClient } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

interface NewTenant {
  name: string;
  display_name: string | null;
  timezone: string;
}

export function useCreateTenant() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: NewTenant) => unwrap(api.POST("/api/v1/tenants", { body })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["tenants"] }),
  });
}

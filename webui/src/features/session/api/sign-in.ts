import { useMutation, useQueryClient } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

import { sessionQuery } from "./get-session";

export function useSignIn() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: { username: string; password: string }) => unwrap(api.POST("/api/v1/session", { body })),
    onSuccess: (session) => client.setQueryData(sessionQuery.queryKey, session),
  });
}

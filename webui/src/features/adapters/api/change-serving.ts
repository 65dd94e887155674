import { useQueryClient } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

const ADAPTER = "/api/v1/tenants/{tenant_id}/adapters/{adapter_id}";

/** Which version the adapter's name serves. Each call returns once the page shows what came of it, and throws ApiError. */
export function useServing(tenantId: string, adapterId: string) {
  const client = useQueryClient();
  const path = { tenant_id: tenantId, adapter_id: adapterId };

  const changed = async (call: Promise<unknown>) => {
    await call;
    await client.invalidateQueries({ queryKey: ["adapters", tenantId] });
  };

  return {
    promote: (version: number) => changed(unwrap(api.POST(`${ADAPTER}/promote`, { params: { path }, body: { version } }))),
    setCanary: (version: number, percent: number) =>
      changed(unwrap(api.PUT(`${ADAPTER}/canary`, { params: { path }, body: { version, percent } }))),
    endCanary: () => changed(unwrap(api.DELETE(`${ADAPTER}/canary`, { params: { path } }))),
    rollBack: () => changed(unwrap(api.POST(`${ADAPTER}/roll-back`, { params: { path } }))),
    retire: (versionId: string) =>
      changed(
        unwrap(api.POST(`${ADAPTER}/versions/{version_id}/retire`, { params: { path: { ...path, version_id: versionId } } })),
      ),
    remove: (versionId: string) =>
      changed(unwrap(api.DELETE(`${ADAPTER}/versions/{version_id}`, { params: { path: { ...path, version_id: versionId } } }))),
  };
}

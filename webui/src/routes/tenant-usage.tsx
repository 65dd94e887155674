import { UsagePage } from "@/features/usage/usage-page";

import { usageRoute, useTimeZone } from "./tenant";

export function TenantUsage() {
  const { tenantId } = usageRoute.useParams();
  const navigate = usageRoute.useNavigate();
  return (
    <UsagePage
      tenantId={tenantId}
      timeZone={useTimeZone(tenantId)}
      search={usageRoute.useSearch()}
      onSearch={(search) => void navigate({ search, replace: true })}
    />
  );
}

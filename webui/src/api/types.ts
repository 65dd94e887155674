/** The API's objects under the names that the UI uses for them. */
import type { components } from "./schema.gen";

type Schemas = components["schemas"];

export type User = Schemas["UserView"];
export type Tenant = Schemas["TenantView"];
export type ApiKey = Schemas["KeyView"];
export type CreatedKey = Schemas["KeyWithSecret"];
export type Adapter = Schemas["AdapterView"];
export type AdapterDetail = Schemas["AdapterDetail"];
export type AdapterVersion = Schemas["VersionView"];
export type AcceptedUpload = Schemas["UploadAccepted"];
export type Upload = Schemas["UploadView"];
export type AdapterQuota = Schemas["AdapterQuotaView"];
export type UsageBucket = Schemas["UsageItem"];
export type Export = Schemas["ExportView"];
export type Engine = Schemas["EngineView"];
export type AuditEntry = Schemas["AuditView"];

/** What validation says of an upload. */
export type ValidationReport = Schemas["Report"];
export type Finding = Schemas["Problem"] | Schemas["Note"];
export type ModuleReport = Schemas["ModuleReport"];

/** The API's objects under the names that the UI uses for them. */
import type { components } from "./schema.gen";

type Schemas = components["schemas"];

export type User = Schemas["UserView"];
export type Tenant = Schemas["TenantView"];
export type ApiKey = Schemas["KeyView"];
export type CreatedKey = Schemas["KeyWithSecret"];
export type Adapter = Schemas["AdapterView"];
export type AdapterVersion = Schemas["VersionView"];
export type AcceptedUpload = Schemas["UploadAccepted"];
export type UsageBucket = Schemas["UsageItem"];
export type Export = Schemas["ExportView"];
export type Engine = Schemas["EngineView"];
export type AuditEntry = Schemas["AuditView"];

/** One thing that validation found; `param` names the tensor, the field of the configuration, or the file. */
export interface Finding {
  code: string;
  message: string;
  param?: string | null;
}

/** What validation says of an upload; what it measured stands beside what it found. */
export interface ValidationReport {
  accepted?: boolean;
  /** Why it was refused. */
  problems?: Finding[];
  /** What its owner should know although it was accepted. */
  warnings?: Finding[];
  [fact: string]: unknown;
}

import type { FieldRule } from "./fields";

/** The names of tenants and adapters, as the API takes them. */
export const NAME_RULE: FieldRule = {
  pattern: /^[a-z0-9][a-z0-9._-]{0,62}$/,
  message: "Up to 63 lower-case letters, digits, dots, dashes and underscores, with a letter or digit first.",
};

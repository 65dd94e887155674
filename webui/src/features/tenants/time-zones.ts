/** What the browser knows of the IANA time zones; the API has the last word. */
export const TIME_ZONES: readonly string[] = ["UTC", ...Intl.supportedValuesOf("timeZone")];

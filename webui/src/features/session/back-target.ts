/** Where to go after signing in: a place of this UI, never another site, and not the sign-in page again. */
export function backTarget(back: unknown): string {
  if (typeof back !== "string" || !/^\/(?![/\\])/.test(back) || back.startsWith("/sign-in")) return "/";
  return back;
}

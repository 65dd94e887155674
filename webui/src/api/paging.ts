/** How a list's place in its pages is kept in the URL. */
export interface PageSearch {
  /** The page shown; absent on the first. */
  cursor?: string;
}

export const pageSearch = (search: Record<string, unknown>): PageSearch =>
  typeof search.cursor === "string" && search.cursor !== "" ? { cursor: search.cursor } : {};

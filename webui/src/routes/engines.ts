import { createRoute } from "@tanstack/react-router";

import { EnginesPage } from "@/features/engines/engines-page";

import { signedInRoute } from "./signed-in";

export const enginesRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: "/engines",
  component: EnginesPage,
});

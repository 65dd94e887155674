import { createRoute } from "@tanstack/react-router";

import { backTarget } from "@/features/session/back-target";
import { SignInPage } from "@/features/session/sign-in-page";

import { rootRoute } from "./root";

export const signInRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/sign-in",
  validateSearch: (search: Record<string, unknown>): { back?: string } => {
    const back = backTarget(search.back);
    return back === "/" ? {} : { back };
  },
  component: function SignIn() {
    const { back } = signInRoute.useSearch();
    const navigate = signInRoute.useNavigate();
    return <SignInPage onSignedIn={() => void navigate({ href: backTarget(back), replace: true })} />;
  },
});

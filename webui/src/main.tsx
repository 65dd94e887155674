import "./styles.css";

import { Toast } from "@heroui/react";
import { MutationCache, QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { ApiError, isSignedOut } from "@/api/errors";

import { makeRouter } from "./router";
import { followSystemTheme } from "./theme";

/** A session that ends while a page is open: to the sign-in page, and back here afterwards. */
function onError(error: Error) {
  const { location } = router.state;
  if (!isSignedOut(error) || location.pathname === "/sign-in") return;
  queryClient.clear();
  void router.navigate({ to: "/sign-in", search: { back: location.href } });
}

const queryClient = new QueryClient({
  queryCache: new QueryCache({ onError }),
  mutationCache: new MutationCache({ onError }),
  defaultOptions: {
    // The platform may well be on this machine or in this house: what the browser thinks of the internet is no matter.
    mutations: { networkMode: "always" },
    queries: {
      networkMode: "always",
      staleTime: 10_000,
      // What the API has decided it decides again; only silence and its own faults are worth another try.
      retry: (failures, error) => failures < 2 && !(error instanceof ApiError && error.status < 500),
    },
  },
});
const router = makeRouter(queryClient);

followSystemTheme();

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={queryClient}>
        <RouterProvider router={router} />
        <Toast.Provider placement="bottom end" />
      </QueryClientProvider>
    </StrictMode>,
  );
}

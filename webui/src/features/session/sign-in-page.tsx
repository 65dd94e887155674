import { Button, Form } from "@heroui/react";
import { useState } from "react";

import { TextInput } from "@/components/fields";
import { Logo } from "@/components/logo";
import { ErrorNote } from "@/components/notes";

import { useSignIn } from "./api/sign-in";

export function SignInPage({ onSignedIn }: { onSignedIn: () => void }) {
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const signIn = useSignIn();

  return (
    <main className="grid min-h-dvh place-items-center p-4">
      <div className="w-full max-w-80">
        <div className="mb-6 flex items-center gap-2.5">
          <Logo className="size-8" />
          <h1 className="text-xl">Sign in to Tenora</h1>
        </div>
        <Form
          className="flex flex-col gap-4"
          onSubmit={(event) => {
            event.preventDefault();
            signIn.mutate({ username, password }, { onSuccess: onSignedIn });
          }}
        >
          <TextInput
            label="User name"
            name="username"
            autoComplete="username"
            autoFocus
            isRequired
            value={username}
            onChange={setUsername}
          />
          <TextInput
            label="Password"
            name="password"
            type="password"
            autoComplete="current-password"
            isRequired
            value={password}
            onChange={setPassword}
          />
          {signIn.error && <ErrorNote error={signIn.error} />}
          <Button type="submit" fullWidth isPending={signIn.isPending}>
            Sign in
          </Button>
        </Form>
      </div>
    </main>
  );
}

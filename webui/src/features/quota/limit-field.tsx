import { Checkbox, Description, FieldError, Input, Label, TextField } from "@heroui/react";

import { formatCount } from "@/format/quantities";

import { type LimitChoice, limitOf } from "./limits";

interface LimitFieldProps {
  label: string;
  name: string;
  choice: LimitChoice;
  onChange: (choice: LimitChoice) => void;
  isDisabled: boolean;
}

export function LimitField({ label, name, choice, onChange, isDisabled }: LimitFieldProps) {
  const limit = limitOf(choice);
  const isWrong = limit === undefined && choice.text !== "";
  return (
    <div className="flex flex-wrap items-start gap-x-5 gap-y-2">
      <TextField
        name={name}
        className="w-56"
        value={choice.isUnlimited ? "" : choice.text}
        onChange={(text) => onChange({ isUnlimited: false, text })}
        isDisabled={isDisabled || choice.isUnlimited}
        isInvalid={isWrong || undefined}
      >
        <Label>{label}</Label>
        <Input inputMode="numeric" placeholder={choice.isUnlimited ? "unlimited" : "a number"} />
        <FieldError>{({ validationErrors }) => (isWrong ? "A whole number, 0 or more." : validationErrors.join(" "))}</FieldError>
        {!isWrong && <Description>{meaning(limit)}</Description>}
      </TextField>
      <Checkbox
        className="mt-7"
        isSelected={choice.isUnlimited}
        isDisabled={isDisabled}
        onChange={(isUnlimited) => onChange({ ...choice, isUnlimited })}
        aria-label={`${label}: unlimited`}
      >
        <Checkbox.Content>
          <Checkbox.Control>
            <Checkbox.Indicator />
          </Checkbox.Control>
          Unlimited
        </Checkbox.Content>
      </Checkbox>
    </div>
  );
}

function meaning(limit: number | null | undefined): string {
  if (limit === undefined) return "Enter a limit, or choose unlimited.";
  if (limit === null) return "No limit.";
  return limit === 0 ? "0 blocks every request." : `At most ${formatCount(limit)} in any minute.`;
}

import { Checkbox } from "@heroui/react";
import type { ReactNode } from "react";

interface CheckboxInputProps {
  children: ReactNode;
  isSelected: boolean;
  onChange: (isSelected: boolean) => void;
}

export function CheckboxInput({ children, ...field }: CheckboxInputProps) {
  return (
    <Checkbox {...field}>
      <Checkbox.Content>
        <Checkbox.Control>
          <Checkbox.Indicator />
        </Checkbox.Control>
        {children}
      </Checkbox.Content>
    </Checkbox>
  );
}

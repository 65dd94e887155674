/** Labelled form fields. Each shows its own error: the browser's rules, or what the form says by the field's name. */
import { Description, FieldError, Input, Label, ListBox, Select, TextField } from "@heroui/react";
import type { InputHTMLAttributes } from "react";

export interface FieldRule {
  pattern: RegExp;
  /** What to write instead. */
  message: string;
}

interface TextInputProps {
  label: string;
  name: string;
  value: string;
  onChange: (value: string) => void;
  type?: InputHTMLAttributes<HTMLInputElement>["type"];
  description?: string;
  placeholder?: string;
  autoComplete?: string;
  autoFocus?: boolean;
  isRequired?: boolean;
  rule?: FieldRule;
  maxLength?: number;
  inputMode?: "numeric";
  /** Values to choose from, without being bound to them. */
  suggestions?: readonly string[];
  min?: string;
  max?: string;
  className?: string;
  /** For a field whose purpose its place and placeholder show: the label is then only spoken. */
  isLabelHidden?: boolean;
}

export function TextInput(props: TextInputProps) {
  const { label, isLabelHidden, description, placeholder, suggestions, min, max, rule, className, ...field } = props;
  const listId = suggestions && `${field.name}-suggestions`;
  const validate = rule && ((value: string) => (value === "" || rule.pattern.test(value) ? null : rule.message));
  return (
    <TextField {...field} validate={validate} className={className}>
      <Label className={isLabelHidden ? "sr-only" : undefined}>{label}</Label>
      <Input placeholder={placeholder} list={listId} min={min} max={max} />
      {suggestions && (
        <datalist id={listId}>
          {suggestions.map((suggestion) => (
            <option key={suggestion} value={suggestion} />
          ))}
        </datalist>
      )}
      {description && <Description>{description}</Description>}
      <FieldError />
    </TextField>
  );
}

interface SelectInputProps<Value extends string> {
  label: string;
  value: Value;
  onChange: (value: Value) => void;
  options: readonly { value: Value; label: string }[];
  className?: string;
}

export function SelectInput<Value extends string>({ label, value, onChange, options, className }: SelectInputProps<Value>) {
  return (
    <Select
      className={className}
      value={value}
      onChange={(key) => {
        const chosen = options.find((option) => option.value === key);
        if (chosen) onChange(chosen.value);
      }}
    >
      <Label>{label}</Label>
      <Select.Trigger>
        <Select.Value />
        <Select.Indicator />
      </Select.Trigger>
      <Select.Popover>
        <ListBox>
          {options.map((option) => (
            <ListBox.Item key={option.value} id={option.value} textValue={option.label}>
              {option.label}
              <ListBox.ItemIndicator />
            </ListBox.Item>
          ))}
        </ListBox>
      </Select.Popover>
    </Select>
  );
}

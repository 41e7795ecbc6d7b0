// Numbers, times and amounts as people read them.

import { language, t } from "./language.js";

export function count(value) {
  return Number(value ?? 0).toLocaleString("en-US");
}

/** Short: 1,240 → 1.2k. */
export function short(value) {
  const number = Number(value ?? 0);
  if (Math.abs(number) < 1000) return String(number);
  if (Math.abs(number) < 1e6) return `${(number / 1e3).toFixed(number < 1e4 ? 1 : 0)}k`;
  return `${(number / 1e6).toFixed(number < 1e7 ? 2 : 1)}M`;
}

export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "";
}

/** A share of one, with a decimal. */
export function share(value) {
  return typeof value === "number" ? `${(100 * value).toFixed(1)} %` : "–";
}

export function cost(dollars) {
  if (typeof dollars !== "number") return "";
  if (dollars === 0) return "$0";
  return dollars < 1 ? `$${dollars.toPrecision(2)}` : `$${dollars.toFixed(2)}`;
}

/** Bytes as a size. */
export function fileSize(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** Milliseconds as a duration. */
export function duration(ms) {
  if (typeof ms !== "number" || !Number.isFinite(ms)) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Seconds since the epoch as a date and a time. */
export function moment(seconds) {
  if (!seconds) return "";
  const locale = language() === "zh" ? "zh-CN" : "en-GB";
  return new Date(seconds * 1000).toLocaleString(locale, { dateStyle: "medium", timeStyle: "medium" });
}

/** How long until then, such as "in 3 h 2 min". */
export function until(seconds) {
  const minutes = Math.max(0, Math.round((seconds - Date.now() / 1000) / 60));
  if (minutes < 1) return t("in less than a minute");
  if (minutes < 60) return t("in {n} min", { n: minutes });
  if (minutes < 2880) return t("in {n} h {m} min", { n: Math.floor(minutes / 60), m: minutes % 60 });
  return t("in {n} days", { n: Math.round(minutes / 1440) });
}

/** How long ago. */
export function ago(seconds) {
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  if (passed < 60) return t("just now");
  if (passed < 3600) return t("{n} min ago", { n: Math.floor(passed / 60) });
  if (passed < 86400) return t("{n} h ago", { n: Math.floor(passed / 3600) });
  return moment(seconds);
}

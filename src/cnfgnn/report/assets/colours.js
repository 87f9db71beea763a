// The colours of sensors on maps, from low to high, shared by reports and the live page.

// Viridis without the end that is invisible on the background; the highest error stands out most.
export const SCALES = {
  light: ["#9bd93c", "#5ec962", "#27ad81", "#21918c", "#2c728e", "#3b528b", "#472d7b", "#440154"],
  dark: ["#3e4c8a", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"],
};

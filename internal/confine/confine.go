// Package confine keeps a process that runs foreign code from changing what is not its own, by what a plain user has on
// Linux: Landlock, and processes whose memory others cannot open. It keeps nobody from reading files, nor from the
// network.
package confine

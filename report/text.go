package report

import (
	"regexp"
	"strings"

	"fisub/internal/plain"
)

// clean turns text from a run into one line of at most n characters, without characters that could hide or reorder the
// text around it.
func clean(s string, n int) string {
	return plain.Cut(plain.Line(s), n)
}

// escapes matches terminal escapes: control sequences, strings such as titles and links, and two-byte escapes.
var escapes = regexp.MustCompile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)|\x1b[ -/]*[0-~]")

const (
	logLines = 60
	logBytes = 6000
)

// logText returns the beginning of a log without terminal escapes. more is a note if the log was cut, else "".
func logText(log string) (text, more string) {
	cut := len(log) > logBytes
	if cut {
		log = log[:logBytes]
	}
	log = escapes.ReplaceAllString(strings.ToValidUTF8(log, "\uFFFD"), "")
	lines := strings.Split(strings.TrimRight(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(log), "\n"), "\n")
	if len(lines) > logLines {
		lines, cut = lines[:logLines], true
	}
	for i, line := range lines {
		lines[i] = plain.Line(strings.ReplaceAll(line, "\t", "    "))
	}
	if cut {
		more = "the complete log is in the run folder, in log/"
	}
	return strings.Join(lines, "\n"), more
}

// Package plain prepares foreign text for a terminal line, a message or a shell, and finds the word meant by a misspelt
// one. Quoting for a file format belongs to that format's package. It also opens files that may be of any kind.
package plain

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// control reports whether r could move a cursor, break a line, or reverse or hide the text next to it.
func control(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// longest is the maximum length of a displayed line, in characters.
const longest = 4096

// Line returns s as one line of at most 4,096 characters. Tabs become spaces; other control characters and invalid
// UTF-8 become U+FFFD.
func Line(s string) string {
	return Cut(Lines(strings.NewReplacer("\t", " ", "\n", "\uFFFD").Replace(s)), longest)
}

// Passing returns what shows text on a terminal, from the cursor on and as far as the line has room, without moving the
// cursor: later output replaces it. If text is "", it removes what was shown.
func Passing(text string) string {
	const clear = "\x1b[K"
	if text == "" {
		return clear
	}
	return "\x1b7\x1b[?7l" + clear + Line(text) + "\x1b[?7h\x1b8" // with the cursor saved, and without line wrap
}

// Text is like Lines but cuts each line to 4,096 characters.
func Text(s string) string {
	if s = Lines(s); len(s) <= longest {
		return s
	}
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = Cut(line, longest)
	}
	return strings.Join(lines, "\n")
}

// Lines replaces invalid UTF-8, and control characters other than tabs and newlines, with U+FFFD.
func Lines(s string) string {
	return strings.Map(func(r rune) rune {
		if control(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// Brief returns s as one line of at most most bytes, with "..." at the end if it is cut. White space and control
// characters between words become one space; invalid UTF-8 is dropped.
func Brief(s string, most int) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, ""),
		func(r rune) bool { return unicode.IsSpace(r) || control(r) }), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-3], "") + "..."
	}
	return s
}

// Places adds folder to the names of files that precede a line number in text, as in `kernel.cu:12` or `File "main.py",
// line 3`.
func Places(text, folder string, files []string) string {
	for _, file := range files {
		place := regexp.MustCompile(`(?m)(^|[\s("])` + regexp.QuoteMeta(file) + `([:(]\d|", line \d)`)
		path := filepath.Join(folder, file)
		text = place.ReplaceAllString(text, "${1}"+strings.ReplaceAll(path, "$", "$$")+"${2}")
	}
	return text
}

var address = NewForm(`0x[0-9a-f]+`)

// NoAddresses returns text without hexadecimal numbers, which differ between messages of two processes.
func NoAddresses(text string) string { return address().ReplaceAllString(text, "") }

// A Place is a position in a source file.
type Place struct {
	File         string
	Line, Column int // from 1; Column is 0 if unknown
}

var places = NewForm(`([\w./+-]+\.(?:cu|cuh|cpp|cc|cxx|c|h|hpp|py))(?:"?, line |:|\()(\d+)(?::(\d+))?`)

// FindPlaces returns the positions in text, in order, as compilers, Python and the virtual GPU write them.
func FindPlaces(text string) (list []Place) {
	for _, m := range places().FindAllStringSubmatch(text, -1) {
		p := Place{File: filepath.ToSlash(m[1])}
		p.Line, _ = strconv.Atoi(m[2])
		p.Column, _ = strconv.Atoi(m[3])
		list = append(list, p)
	}
	return list
}

// First returns the first line of s.
func First(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// Suffix returns the extension of a file name, with its dot. A dot at the start or the end of the name does not count.
func Suffix(name string) string {
	if i := strings.LastIndexByte(name, '.'); i > 0 && i < len(name)-1 {
		return name[i:]
	}
	return ""
}

// Cause returns err without the path of an *fs.PathError, for messages that already name the file.
func Cause(err error) error {
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return file.Err
	}
	return err
}

// Cut shortens s to n characters, ending in an ellipsis.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// Short returns the first 8 characters of a hash, a uuid or any other text.
func Short(hash string) string {
	r := []rune(Line(hash))
	return string(r[:min(8, len(r))])
}

// Count returns a number with its noun: "1 file", "2 files".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// List joins words for a sentence: "a, b and c".
func List(words []string, conjunction string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " " + conjunction + " " + words[len(words)-1]
}

// Quote returns s as one word of a POSIX shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// A Form is a regular expression that is compiled at its first use: each job starts several fisub processes, and few
// use one.
type Form func() *regexp.Regexp

// NewForm returns the Form of the regular expression expr.
func NewForm(expr string) Form {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// MatchString reports whether s matches f.
func (f Form) MatchString(s string) bool { return f().MatchString(s) }

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)

// Word is like Quote, but omits quotes that the shell does not need. It is for commands shown to a person.
func Word(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return Quote(s)
}

// ErrTooLong reports a line longer than the limit of ReadLine.
var ErrTooLong = errors.New("line too long")

// ReadLine reads up to and including the next newline, into buf if it is large enough. It returns ErrTooLong for more
// than most bytes, else r's error with the line so far.
func ReadLine(r *bufio.Reader, buf []byte, most int) (line []byte, err error) {
	for line = buf[:0]; ; {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > most {
			return nil, ErrTooLong
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// Relative returns p relative to the working directory if that is shorter.
func Relative(p string) string {
	wd, err := os.Getwd()
	if err != nil {
		return p
	}
	if rel, err := filepath.Rel(wd, p); err == nil && len(rel) < len(p) {
		return rel
	}
	return p
}

// Field returns the value of the first line "key: value" in a file such as /proc/cpuinfo, or "".
func Field(path, key string) string {
	data, _ := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// A Buffer keeps the first Limit bytes written to it and silently drops the rest. It is safe for concurrent use. The
// zero value keeps nothing.
type Buffer struct {
	Limit int

	mu   sync.Mutex
	kept []byte
	over bool
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(p), b.Limit-len(b.kept))
	b.over = b.over || n < len(p)
	b.kept = append(b.kept, p[:n]...)
	return len(p), nil
}

// Bytes returns the kept bytes, which must not be modified. They are stale after the next Write.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept
}

func (b *Buffer) String() string { return string(b.Bytes()) }

// Over reports whether bytes were dropped.
func (b *Buffer) Over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.over
}

// Mark returns the position of the byte range from start to end: line and column of its start, both from 1, the column
// in characters. excerpt is that line with a marker below its part of the range, without a final newline.
func Mark(src string, start, end int) (line, col int, excerpt string) {
	start = min(start, len(src))
	begin := strings.LastIndexByte(src[:start], '\n') + 1
	whole, _, _ := strings.Cut(src[begin:], "\n")
	whole = strings.TrimSuffix(whole, "\r")
	start = min(start, begin+len(whole))
	end = max(start, min(end, begin+len(whole)))
	line, col = 1+strings.Count(src[:begin], "\n"), 1+utf8.RuneCountInString(src[begin:start])
	return line, col, MarkLine(line, whole, start-begin, end-begin)
}

// MarkLine returns a line of a source with its number, and a marker below its bytes from start to end.
func MarkLine(number int, line string, start, end int) string {
	const width = 120 // maximum number of characters shown
	shown := func(from, to int) []rune { return []rune(Lines(line[from:to])) }
	before, marked := shown(max(0, start-4*width), start), shown(start, min(end, start+4*width))
	after := shown(end, min(len(line), end+4*width))
	if len(before) > width/2 {
		before = append([]rune("..."), before[len(before)-width/2:]...)
	}
	if len(marked) > width/2 {
		marked = append(marked[:width/2:width/2], []rune("...")...)
		after = nil
	}
	if room := width - len(before) - len(marked); len(after) > max(room, 0) {
		after = append(after[:max(room, 0):max(room, 0)], []rune("...")...)
	}
	digits := strconv.Itoa(number)
	pad := strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, string(before))
	return fmt.Sprintf("%s | %s\n%s | %s%s", digits, string(before)+string(marked)+string(after),
		strings.Repeat(" ", len(digits)), pad, strings.Repeat("^", max(1, len(marked))))
}

// Nearest returns up to three candidates that word may be a misspelling of, nearest first. It ignores case; ties keep
// their order.
func Nearest(word string, candidates []string) []string {
	type match struct {
		candidate string
		distance  int
	}
	w := []rune(strings.ToLower(word))
	var found []match
	for _, c := range candidates {
		r := []rune(strings.ToLower(c))
		limit := (min(len(w), len(r)) + 2) / 3
		if max(len(w), len(r)) > 256 || abs(len(w)-len(r)) > limit {
			continue
		}
		if d := distance(w, r); d <= limit && d < max(len(w), len(r)) {
			found = append(found, match{c, d})
		}
	}
	slices.SortStableFunc(found, func(a, b match) int { return cmp.Compare(a.distance, b.distance) })
	var names []string
	for _, m := range found[:min(len(found), 3)] {
		names = append(names, m.candidate)
	}
	return names
}

func abs(n int) int { return max(n, -n) }

// Edits returns the number of edits that turn a into b: letters changed, added, removed or swapped with a neighbour.
func Edits(a, b string) int { return distance([]rune(a), []rune(b)) }

func distance(a, b []rune) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		row, up, up2 := rows[i%3], rows[(i+2)%3], rows[(i+1)%3]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(up[j]+1, row[j-1]+1, up[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], up2[j-2]+1)
			}
		}
	}
	return rows[len(a)%3][len(b)]
}

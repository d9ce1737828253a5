// Package plain makes text of other programs and people fit for a line of a terminal, a message or a shell, and finds
// the word that may be meant. What a file format needs to be quoted stays with the format.
package plain

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// control tells whether r could move a terminal's cursor, break a line, or turn round or hide what stands beside it.
func control(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// longest is the number of characters of the longest line that is shown.
const longest = 4096

// Line gives s as one line of at most 4,096 characters: tabs become spaces; other control characters, and bytes that
// are no UTF-8, U+FFFD.
func Line(s string) string {
	return Cut(Lines(strings.NewReplacer("\t", " ", "\n", "\uFFFD").Replace(s)), longest)
}

// Text is Lines with long lines cut as by Line.
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

// Lines is Line for a text of several lines, which may be indented with tabs.
func Lines(s string) string {
	return strings.Map(func(r rune) rune {
		if control(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// Brief gives s as one line of at most most bytes, the last of them "..." where there is more: control characters, line
// ends and white space between words become one space, and what is no UTF-8 is left out.
func Brief(s string, most int) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, ""),
		func(r rune) bool { return unicode.IsSpace(r) || control(r) }), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-3], "") + "..."
	}
	return s
}

// Places returns text with the path of each of the files that has a line behind it, `kernel.cu:12` or `File "main.py",
// line 3`, behind folder, in which the files are.
func Places(text, folder string, files []string) string {
	for _, file := range files {
		place := regexp.MustCompile(`(?m)(^|[\s("])` + regexp.QuoteMeta(file) + `([:(]\d|", line \d)`)
		path := filepath.Join(folder, file)
		text = place.ReplaceAllString(text, "${1}"+strings.ReplaceAll(path, "$", "$$")+"${2}")
	}
	return text
}

// First is the first line of s, which may be one of several.
func First(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// Cause is err without the path that the operating system's errors have, for one that names the file itself.
func Cause(err error) error {
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return file.Err
	}
	return err
}

// Cut shortens s to n characters, the last of which then is an ellipsis.
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

// Short is the beginning of a hash, or of a uuid, which may be any text.
func Short(hash string) string {
	r := []rune(Line(hash))
	return string(r[:min(8, len(r))])
}

// Count gives a number with its noun: "1 file", "2 files".
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

// Quote gives s as one word of a POSIX shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// A Form is what a text looks like, as a regular expression that is compiled when it is first asked: fisub starts in
// several processes for each job, and most of them ask for none.
type Form func() *regexp.Regexp

// NewForm gives the Form that expr describes.
func NewForm(expr string) Form {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// MatchString tells whether s looks so.
func (f Form) MatchString(s string) bool { return f().MatchString(s) }

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)

// Word is Quote for a command that a person reads: quotes are left out where the shell needs none.
func Word(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return Quote(s)
}

// ReadFile is os.ReadFile of at most most bytes: a longer file, also one without an end, such as a device, is an error.
func ReadFile(path string, most int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(data) > most {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("more than the limit of %d bytes", most)}
	}
	return data, err
}

// ErrTooLong says that a line is longer than ReadLine may read.
var ErrTooLong = errors.New("line too long")

// ReadLine reads up to and with the next newline, most bytes at most. Its error is r's, with the line so far, or
// ErrTooLong.
func ReadLine(r *bufio.Reader, most int) (line []byte, err error) {
	for {
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

// Relative returns the path p relative to the working directory if that is shorter.
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

// Field is the value of the first line "key: value" of a file such as /proc/cpuinfo; "" where there is none.
func Field(path, key string) string {
	data, _ := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// A Buffer keeps the first Limit bytes that are written to it and drops the rest; no write fails. Several goroutines
// may use it. The zero value keeps nothing.
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

// Bytes is what was kept. It must not be changed, and is stale after the next Write.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept
}

func (b *Buffer) String() string { return string(b.Bytes()) }

// Over tells whether something was dropped.
func (b *Buffer) Over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.over
}

// Mark gives the place of a range of bytes of a text: the line and column, which counts characters, of its beginning,
// both from 1, and the line with a marker below what of the range is in it, without a final newline.
func Mark(src string, start, end int) (line, col int, excerpt string) {
	start = min(start, len(src))
	begin := strings.LastIndexByte(src[:start], '\n') + 1
	whole, _, _ := strings.Cut(src[begin:], "\n")
	whole = strings.TrimSuffix(whole, "\r")
	start = min(start, begin+len(whole))
	end = max(start, min(end, begin+len(whole)))
	line, col = 1+strings.Count(src[:begin], "\n"), 1+utf8.RuneCountInString(src[begin:start])

	const width = 120 // characters of a line that are shown
	shown := func(from, to int) []rune { return []rune(Lines(src[from:to])) }
	before, marked := shown(max(begin, start-4*width), start), shown(start, min(end, start+4*width))
	after := shown(end, min(begin+len(whole), end+4*width))
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
	number := strconv.Itoa(line)
	pad := strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, string(before))
	return line, col, fmt.Sprintf("%s | %s\n%s | %s%s", number, string(before)+string(marked)+string(after),
		strings.Repeat(" ", len(number)), pad, strings.Repeat("^", max(1, len(marked))))
}

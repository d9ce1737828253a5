package remote

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"iter"
	"strings"
)

// A Seal signs the output of a job's agent and verifies the signatures. It covers each line of the stream with its
// number, and the Exit with the number of lines: without the key nobody can add, change, drop, reorder or replay lines.
// If Key is "", nothing is signed and everything is accepted.
type Seal struct {
	Key string
	Job string // its ID

	Lines int64 // lines signed or verified so far
}

// codeSize is the length of a signature in hexadecimal digits.
const codeSize = 2 * sha256.Size

func (s *Seal) hash(of string, number int64) hash.Hash {
	h := hmac.New(sha256.New, []byte(s.Key))
	fmt.Fprintf(h, "fisub %s\n%s\n%d\n", of, s.Job, number)
	return h
}

func code(h hash.Hash) []byte { return hex.AppendEncode(nil, h.Sum(nil)) }

// Line verifies the next line, given without its newline, and returns it without its signature. If it does not end with
// a tab and a valid signature, ok is false and the line is not counted.
func (s *Seal) Line(text []byte) (line []byte, ok bool) {
	if s.Key == "" {
		return text, true
	}
	at := len(text) - codeSize - 1
	if at < 0 || text[at] != '\t' {
		return text, false
	}
	h := s.hash("line", s.Lines+1)
	h.Write(text[:at])
	if !hmac.Equal(code(h), text[at+1:]) {
		return text, false
	}
	s.Lines++
	return text[:at], true
}

// Sign returns e with its signature. Lines must be the number of all lines.
func (s *Seal) Sign(e Exit) Exit {
	if s.Key == "" {
		return e
	}
	e.Text, e.Hint = strings.ToValidUTF8(e.Text, "?"), strings.ToValidUTF8(e.Hint, "?")
	e.Lines = s.Lines
	e.MAC = s.exit(e)
	return e
}

// Signed reports whether e has a valid signature.
func (s *Seal) Signed(e Exit) bool {
	return s.Key != "" && hmac.Equal([]byte(s.exit(e)), []byte(e.MAC))
}

// Missing describes the lines written before e was signed that have not arrived. It returns "" if none are missing or e
// is unsigned.
func (s *Seal) Missing(e Exit) string {
	if e.MAC == "" || e.Lines == s.Lines {
		return ""
	}
	return fmt.Sprintf("its agent wrote %d lines, but %d arrived", e.Lines, s.Lines)
}

func (s *Seal) exit(e Exit) string {
	e.MAC = ""
	text, _ := json.Marshal(e) // strings and numbers: Marshal cannot fail
	h := s.hash("exit", e.Lines)
	h.Write(text)
	return string(code(h))
}

// MaxLine is the maximum length of a stream's line in bytes.
const MaxLine = 32 << 20

// A Cutter splits the stream of a job, from its beginning, into lines and verifies them.
type Cutter struct {
	Seal
	half []byte // the incomplete last line
	long bool   // half was longer than MaxLine and is dropped
}

// A SignedLine is a line of a stream without newline and signature.
type SignedLine struct {
	Text   []byte // valid until the next line is requested; nil if Long
	Signed bool   // the signature is valid or signing is off; assumed if Long, since later lines fail if it is wrong
	Long   bool   // longer than MaxLine, and dropped
}

// Cut returns the lines completed by p, the next bytes of the stream. The caller must consume them all.
func (c *Cutter) Cut(p []byte) iter.Seq[SignedLine] {
	return func(yield func(SignedLine) bool) {
		for part := range bytes.Lines(p) {
			text, whole := bytes.CutSuffix(part, []byte("\n"))
			if !c.long {
				c.half = append(c.half, text...)
			}
			if len(c.half) > MaxLine {
				c.long, c.half = true, nil
			}
			if !whole {
				return
			}
			line := SignedLine{Signed: true, Long: c.long}
			if c.long {
				c.Lines++
			} else {
				line.Text, line.Signed = c.Line(c.half)
			}
			c.half, c.long = c.half[:0], false
			if !yield(line) {
				return
			}
		}
	}
}

// A Sealer signs the lines of a stream and writes them to W.
type Sealer struct {
	W io.Writer
	*Seal
	begun int64     // number of lines started
	line  hash.Hash // the incomplete last line
}

// Write takes the next bytes of the stream, not necessarily whole lines. After an error Lines is the number of lines in
// W.
func (s *Sealer) Write(p []byte) (int, error) {
	out := p
	if s.Key != "" {
		out = nil
		for part := range bytes.Lines(p) {
			text, whole := bytes.CutSuffix(part, []byte("\n"))
			if s.line == nil {
				s.begun++
				s.line = s.hash("line", s.begun)
			}
			s.line.Write(text)
			if out = append(out, text...); whole {
				out = append(append(append(out, '\t'), code(s.line)...), '\n')
				s.line = nil
			}
		}
	}
	n, err := s.W.Write(out)
	s.Lines += int64(bytes.Count(out[:max(n, 0)], []byte("\n")))
	return len(p), err
}

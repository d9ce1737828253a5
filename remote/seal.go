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

// A Seal signs what the agent of a job says, and knows again what was signed: each line of the stream, by its number,
// and the Exit, with the number of lines. So nothing can be added, changed, left out, put in another place or taken
// from another job by who does not have the key. Where the Key is "" nothing is signed, and everything is taken.
type Seal struct {
	Key string
	Job string // its ID

	Lines int64 // that were signed, or known, so far
}

// codeSize is the length of a code in hexadecimal digits.
const codeSize = 2 * sha256.Size

func (s *Seal) hash(of string, number int64) hash.Hash {
	h := hmac.New(sha256.New, []byte(s.Key))
	fmt.Fprintf(h, "fisub %s\n%s\n%d\n", of, s.Job, number)
	return h
}

func code(h hash.Hash) []byte { return hex.AppendEncode(nil, h.Sum(nil)) }

// Line takes the next line, without its newline, and gives what was signed; ok is false, and the line does not count,
// where it does not end with a tab and its code.
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

// Sign gives the end of the job as it is after Lines lines, signed.
func (s *Seal) Sign(e Exit) Exit {
	if s.Key == "" {
		return e
	}
	e.Text, e.Hint = strings.ToValidUTF8(e.Text, "?"), strings.ToValidUTF8(e.Hint, "?")
	e.Lines = s.Lines
	e.MAC = s.exit(e)
	return e
}

// Signed tells whether the end of the job is signed.
func (s *Seal) Signed(e Exit) bool {
	return s.Key != "" && hmac.Equal([]byte(s.exit(e)), []byte(e.MAC))
}

// Missing says what of the lines that the agent wrote before it signed e has not come, "" where nothing is missing or
// nothing is signed.
func (s *Seal) Missing(e Exit) string {
	if e.MAC == "" || e.Lines == s.Lines {
		return ""
	}
	return fmt.Sprintf("its agent has written %d lines, and %d have come", e.Lines, s.Lines)
}

func (s *Seal) exit(e Exit) string {
	e.MAC = ""
	text, _ := json.Marshal(e) // strings and numbers: it cannot fail
	h := s.hash("exit", e.Lines)
	h.Write(text)
	return string(code(h))
}

// MaxLine bounds a line of a job's stream, in bytes.
const MaxLine = 32 << 20

// A Cutter cuts the stream of a job, from its beginning, into lines, and knows again those that the agent has signed.
type Cutter struct {
	Seal
	half []byte // the line that is not whole yet
	long bool   // it is longer than MaxLine, and dropped
}

// A SignedLine is one of a stream, without its newline and its code.
type SignedLine struct {
	Text   []byte // until the next one is asked for; not of one that is Long
	Signed bool   // by the agent, or nothing is; it may be where the line is Long: what follows tells
	Long   bool   // more than MaxLine, and dropped
}

// Cut gives the lines that end with p, which is what comes next of the stream. It must be read to its end.
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

// A Sealer writes a stream to W, each line with its code.
type Sealer struct {
	W io.Writer
	*Seal
	begun int64     // lines
	line  hash.Hash // of the one that is not whole yet
}

// Write takes bytes of the stream, whole lines or not. After an error the Seal has counted the lines that are in W.
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

package trace

import (
	"bytes"
	"errors"
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"
)

// Limits on a JSON document. The format's own parser has the same depth and digit limits and no others.
const (
	maxDepth  = 201      // containers within containers
	maxDigits = 4300     // digits of an integer
	maxBytes  = 64 << 20 // of one document
	maxValues = 1 << 20  // of one document
)

type kind uint8

const (
	null kind = iota
	boolean
	integer
	float
	text
	array
	object
)

// A value is a JSON value with its place in the document.
type value struct {
	kind  kind
	pos   int     // offset of its first byte
	text  string  // a string's content; a number's or boolean's literal
	items []value // an array's items, an object's values
	keys  []key   // an object's keys, parallel to items, each once
}

type key struct {
	name string
	pos  int
}

// get returns the value of name, or nil.
func (v *value) get(name string) *value {
	for i := range v.keys {
		if v.keys[i].name == name {
			return &v.items[i]
		}
	}
	return nil
}

// A syntaxError is a fault of the JSON text at an offset.
type syntaxError struct {
	pos  int
	text string
}

func (e *syntaxError) Error() string { return e.text }

// A reader parses one JSON document: RFC 8259, and the tokens NaN, Infinity and -Infinity.
type reader struct {
	data   []byte
	pos    int
	depth  int
	values int
	raw    bool // strings may hold invalid UTF-8
}

// parse reads the whole document.
func (r *reader) parse() (*value, *syntaxError) {
	if len(r.data) > maxBytes {
		return nil, &syntaxError{0, fmt.Sprintf("document of %d bytes exceeds %d", len(r.data), maxBytes)}
	}
	var v value
	err := r.value(&v)
	if err == nil {
		if r.space(); r.pos < len(r.data) {
			err = r.fail("trailing characters")
		}
	}
	if err != nil {
		var se *syntaxError
		errors.As(err, &se)
		return nil, se
	}
	return &v, nil
}

func (r *reader) fail(text string) error { return &syntaxError{r.pos, text} }

// space skips white space.
func (r *reader) space() {
	for r.pos < len(r.data) {
		switch r.data[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

// next skips white space and returns the byte there; ok is false at the end.
func (r *reader) next() (c byte, ok bool) {
	if r.space(); r.pos == len(r.data) {
		return 0, false
	}
	return r.data[r.pos], true
}

func (r *reader) value(v *value) error {
	c, ok := r.next()
	if !ok {
		return r.fail("EOF while parsing a value")
	}
	if r.values++; r.values > maxValues {
		return r.fail(fmt.Sprintf("more than %d values", maxValues))
	}
	v.pos = r.pos
	switch c {
	case '{', '[':
		if r.depth++; r.depth > maxDepth {
			return r.fail("recursion limit exceeded")
		}
		defer func() { r.depth-- }()
		r.pos++
		if c == '{' {
			return r.object(v)
		}
		return r.array(v)
	case '"':
		v.kind = text
		return r.string(&v.text)
	case 't':
		return r.word(v, "true", boolean)
	case 'f':
		return r.word(v, "false", boolean)
	case 'n':
		return r.word(v, "null", null)
	case 'N':
		return r.word(v, "NaN", float)
	case 'I':
		return r.word(v, "Infinity", float)
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return r.number(v)
	}
	return r.fail("expected value")
}

func (r *reader) word(v *value, w string, k kind) error {
	for i := range len(w) {
		if r.pos == len(r.data) {
			return r.fail("EOF while parsing a value")
		}
		if r.data[r.pos] != w[i] {
			return r.fail("expected ident")
		}
		r.pos++
	}
	v.kind, v.text = k, w
	return nil
}

func (r *reader) number(v *value) error {
	start := r.pos
	v.kind = integer
	if r.data[r.pos] == '-' {
		r.pos++
		if r.pos < len(r.data) && r.data[r.pos] == 'I' {
			err := r.word(v, "Infinity", float)
			v.text = "-Infinity"
			return err
		}
	}
	first := r.pos
	if err := r.digits(); err != nil {
		return err
	}
	if r.pos-first > 1 && r.data[first] == '0' {
		return &syntaxError{first + 1, "invalid number"}
	}
	if r.pos-first > maxDigits {
		return r.fail("number out of range")
	}
	if r.pos < len(r.data) && r.data[r.pos] == '.' {
		v.kind = float
		r.pos++
		if err := r.digits(); err != nil {
			return err
		}
	}
	if r.pos < len(r.data) && r.data[r.pos]|0x20 == 'e' {
		v.kind = float
		r.pos++
		if r.pos < len(r.data) && (r.data[r.pos] == '+' || r.data[r.pos] == '-') {
			r.pos++
		}
		if err := r.digits(); err != nil {
			return err
		}
	}
	v.text = string(r.data[start:r.pos])
	return nil
}

// digits skips one or more decimal digits.
func (r *reader) digits() error {
	start := r.pos
	for r.pos < len(r.data) && '0' <= r.data[r.pos] && r.data[r.pos] <= '9' {
		r.pos++
	}
	switch {
	case r.pos > start:
		return nil
	case r.pos == len(r.data):
		return r.fail("EOF while parsing a value")
	}
	return r.fail("invalid number")
}

func (r *reader) array(v *value) error {
	v.kind = array
	c, ok := r.next()
	if ok && c == ']' {
		r.pos++
		return nil
	}
	for ok {
		v.items = append(v.items, value{})
		if err := r.value(&v.items[len(v.items)-1]); err != nil {
			return err
		}
		if c, ok = r.next(); !ok {
			break
		}
		r.pos++
		switch c {
		case ']':
			return nil
		case ',':
		default:
			r.pos--
			return r.fail("expected `,` or `]`")
		}
		if c, ok := r.next(); ok && c == ']' {
			return r.fail("trailing comma")
		}
	}
	return r.fail("EOF while parsing a list")
}

func (r *reader) object(v *value) error {
	v.kind = object
	var index map[string]int // of the keys, once there are many
	c, ok := r.next()
	if ok && c == '}' {
		r.pos++
		return nil
	}
	for ok {
		if c != '"' {
			return r.fail("key must be a string")
		}
		k := key{pos: r.pos}
		if err := r.string(&k.name); err != nil {
			return err
		}
		if c, ok = r.next(); !ok {
			break
		}
		if c != ':' {
			return r.fail("expected `:`")
		}
		r.pos++
		i := -1
		if index == nil {
			for j := range v.keys {
				if v.keys[j].name == k.name {
					i = j
				}
			}
		} else if j, dup := index[k.name]; dup {
			i = j
		}
		if i < 0 {
			i = len(v.keys)
			v.keys = append(v.keys, k)
			v.items = append(v.items, value{})
			if index != nil {
				index[k.name] = i
			} else if i == 16 {
				index = make(map[string]int)
				for j := range v.keys {
					index[v.keys[j].name] = j
				}
			}
		}
		v.keys[i].pos = k.pos
		v.items[i] = value{}
		if err := r.value(&v.items[i]); err != nil {
			return err
		}
		if c, ok = r.next(); !ok {
			break
		}
		r.pos++
		switch c {
		case '}':
			return nil
		case ',':
		default:
			r.pos--
			return r.fail("expected `,` or `}`")
		}
		if c, ok = r.next(); !ok {
			return r.fail("EOF while parsing a value")
		}
		if c == '}' {
			return r.fail("trailing comma")
		}
	}
	return r.fail("EOF while parsing an object")
}

// string reads a string from its opening quote on.
func (r *reader) string(s *string) error {
	r.pos++
	start := r.pos
	escaped := false
	for r.pos < len(r.data) && r.data[r.pos] != '"' && r.data[r.pos] >= ' ' {
		if r.data[r.pos] == '\\' {
			escaped = true
			r.pos++
		}
		r.pos++
	}
	end := min(r.pos, len(r.data))
	raw := r.data[start:end]
	var err error
	if escaped {
		*s, err = r.unescape(start, end)
	} else {
		*s = string(raw)
	}
	if !r.raw && !utf8.Valid(raw) {
		var se *syntaxError
		if pos := start + invalidUTF8(raw); !errors.As(err, &se) || pos < se.pos {
			return &syntaxError{pos, "invalid unicode code point"}
		}
	}
	r.pos = end
	switch {
	case err != nil:
		return err
	case end == len(r.data):
		return r.fail("EOF while parsing a string")
	case r.data[end] != '"':
		return r.fail("control character (\\u0000-\\u001F) found while parsing a string")
	}
	r.pos++
	return nil
}

// unescape returns the string between two offsets.
func (r *reader) unescape(start, end int) (string, error) {
	var b strings.Builder
	b.Grow(end - start)
	for {
		n := bytes.IndexByte(r.data[start:end], '\\')
		if n < 0 {
			b.Write(r.data[start:end])
			return b.String(), nil
		}
		b.Write(r.data[start : start+n])
		r.pos = start + n
		c, err := r.escape()
		if err != nil {
			return "", err
		}
		if c < utf8.RuneSelf {
			b.WriteByte(byte(c))
		} else {
			b.WriteRune(c)
		}
		start = r.pos
	}
}

func invalidUTF8(p []byte) int {
	n := 0
	for n < len(p) {
		r, size := utf8.DecodeRune(p[n:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		n += size
	}
	return n
}

// escape returns the character that the escape at the cursor stands for, and moves behind it.
func (r *reader) escape() (rune, error) {
	r.pos++
	if r.pos == len(r.data) {
		return 0, r.fail("EOF while parsing a string")
	}
	c := r.data[r.pos]
	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
		r.pos++
		return rune("\"\\/\b\f\n\r\t"[i]), nil
	}
	if c != 'u' {
		return 0, r.fail("invalid escape")
	}
	r.pos++
	u, err := r.hex4()
	if err != nil {
		return 0, err
	}
	switch {
	case 0xdc00 <= u && u < 0xe000:
		return 0, &syntaxError{r.pos - 1, "lone leading surrogate in hex escape"}
	case 0xd800 <= u && u < 0xdc00:
		for _, want := range []byte(`\u`) {
			if r.pos == len(r.data) {
				return 0, r.fail("EOF while parsing a string")
			}
			if r.data[r.pos] != want {
				return 0, r.fail("unexpected end of hex escape")
			}
			r.pos++
		}
		low, err := r.hex4()
		if err != nil {
			return 0, err
		}
		if low < 0xdc00 || low >= 0xe000 {
			return 0, &syntaxError{r.pos - 1, "lone leading surrogate in hex escape"}
		}
		u = 0x10000 + (u-0xd800)<<10 + (low - 0xdc00)
	}
	return u, nil
}

func (r *reader) hex4() (u rune, err error) {
	for range 4 {
		if r.pos == len(r.data) {
			return 0, r.fail("EOF while parsing a string")
		}
		c := r.data[r.pos]
		switch {
		case '0' <= c && c <= '9':
			u = u<<4 + rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			u = u<<4 + rune(c|0x20-'a') + 10
		default:
			return 0, r.fail("invalid escape")
		}
		r.pos++
	}
	return u, nil
}

// lines finds the line and column of offsets in a document.
type lines struct {
	data   []byte
	starts []int // offsets of the lines' first bytes, once asked for
}

// at returns the line and the column, in bytes, of an offset; both count from 1.
func (l *lines) at(pos int) (line, col int) {
	if l.starts == nil {
		l.starts = append(l.starts, 0)
		for i := 0; ; {
			j := bytes.IndexByte(l.data[i:], '\n')
			if j < 0 {
				break
			}
			i += j + 1
			l.starts = append(l.starts, i)
		}
	}
	line = sort.Search(len(l.starts), func(i int) bool { return l.starts[i] > pos })
	return line, pos - l.starts[line-1] + 1
}

// jsonPlace is the place of an offset as the format's parser words it: an end of line counts as column 0 of the next
// line, and the end of the text has the column of the byte before it.
func (l *lines) jsonPlace(pos int) string {
	line, col := l.at(pos)
	switch {
	case pos >= len(l.data):
		col--
	case l.data[pos] == '\n':
		line, col = line+1, 0
	}
	return fmt.Sprintf("line %d column %d", line, col)
}

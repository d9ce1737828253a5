package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxBytes limits the size of a JSON document, or of one line in a .jsonl file.
const MaxBytes = 64 << 20

const maxValues = 1 << 20 // per document

// A value is a JSON value with its position in the document.
type value struct {
	kind  jsontext.Kind
	pos   int     // offset of the first byte
	text  string  // content of a string, literal of a number
	items []value // items of an array, values of an object
	keys  []key   // keys of an object, parallel to items
}

type key struct {
	name string
	pos  int
}

// get returns the value of the key name, or nil.
func (v *value) get(name string) *value {
	if i := slices.IndexFunc(v.keys, func(k key) bool { return k.name == name }); i >= 0 {
		return &v.items[i]
	}
	return nil
}

// A syntaxError is a fault of the JSON text at an offset.
type syntaxError struct {
	pos  int
	text string
}

func (e *syntaxError) Error() string { return e.text }

// A reader reads consecutive values.
type reader struct {
	*jsontext.Decoder
	data   []byte
	values int
}

// parse parses a document: JSON as in RFC 8259, plus NaN, Infinity and -Infinity. Duplicate keys and invalid UTF-8 are
// faults.
func parse(data []byte) (*value, *syntaxError) {
	if len(data) > MaxBytes {
		return nil, &syntaxError{0, fmt.Sprintf("document of %d bytes exceeds %d", len(data), MaxBytes)}
	}
	r := &reader{Decoder: jsontext.NewDecoder(bytes.NewBuffer(finite(data))), data: data}
	var v value
	err := r.value(&v)
	if err == nil {
		end := int(r.InputOffset())
		if _, err = r.ReadToken(); err == nil {
			err = &syntaxError{end, "more than one value"}
		} else if err == io.EOF { //nolint:errorlint // as ReadToken documents it
			return &v, nil
		}
	}
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return nil, &syntaxError{int(syntax.ByteOffset), syntax.Err.Error()}
	}
	if mine, ok := errors.AsType[*syntaxError](err); ok {
		return nil, mine
	}
	return nil, &syntaxError{len(data), io.ErrUnexpectedEOF.Error()} // a document without a value
}

func (r *reader) value(v *value) error {
	if r.values++; r.values > maxValues {
		return &syntaxError{int(r.InputOffset()), fmt.Sprintf("more than %d values", maxValues)}
	}
	switch v.kind = r.PeekKind(); v.kind {
	case '[', '{':
	default:
		raw, err := r.ReadValue()
		if err != nil {
			return err
		}
		v.pos = int(r.InputOffset()) - len(raw)
		if v.kind == '"' {
			v.text = unquoted(raw)
		} else {
			v.text = string(r.data[v.pos:r.InputOffset()])
		}
		return nil
	}
	if _, err := r.ReadToken(); err != nil {
		return err
	}
	v.pos = int(r.InputOffset()) - 1
	for r.PeekKind() != ']' && r.PeekKind() != '}' {
		if v.kind == '{' {
			raw, err := r.ReadValue()
			if err != nil {
				return err
			}
			v.keys = append(v.keys, key{unquoted(raw), int(r.InputOffset()) - len(raw)})
		}
		v.items = append(v.items, value{})
		if err := r.value(&v.items[len(v.items)-1]); err != nil {
			return err
		}
	}
	_, err := r.ReadToken()
	return err
}

// unquoted returns the content of a JSON string.
func unquoted(raw jsontext.Value) string {
	text, _ := jsontext.AppendUnquote(make([]byte, 0, len(raw)), raw)
	return string(text)
}

// finite returns data with numbers of the same length instead of NaN, Infinity and -Infinity, which Python writes but
// JSON forbids.
func finite(data []byte) []byte {
	numbers := map[string]string{"NaN": "0e0", "Infinity": "0.000000", "-Infinity": "-0.000000"}
	if !bytes.Contains(data, []byte("NaN")) && !bytes.Contains(data, []byte("Infinity")) {
		return data
	}
	data = slices.Clone(data)
	between := func(c byte) bool { return bytes.IndexByte([]byte(" \t\r\n,:[]{}\""), c) >= 0 }
	for i := 0; i < len(data); i++ {
		if data[i] == '"' {
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
			continue
		}
		if between(data[i]) {
			continue
		}
		word := data[i:]
		if end := bytes.IndexFunc(word, func(r rune) bool { return r < 0x80 && between(byte(r)) }); end >= 0 {
			word = word[:end]
		}
		copy(word, numbers[string(word)])
		i += len(word) - 1
	}
	return data
}

// lines converts offsets in a document to lines and columns.
type lines struct {
	data   []byte
	starts []int // offsets of the lines, computed when needed
}

// at returns the line and the column, in bytes, of an offset. Both count from 1.
func (l *lines) at(pos int) (line, col int) {
	if l.starts == nil {
		l.starts = append(l.starts, 0)
		for i, c := range l.data {
			if c == '\n' {
				l.starts = append(l.starts, i+1)
			}
		}
	}
	line = sort.Search(len(l.starts), func(i int) bool { return l.starts[i] > pos })
	return line, pos - l.starts[line-1] + 1
}

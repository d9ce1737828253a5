package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// A place is where a key, or the name of a table in its header, begins.
type place struct {
	path  string // "build.entry_point", "build"
	start int    // in bytes
}

var bare = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]*$`)

// locate finds where the keys and tables of a document are, in their order. go-toml gives places of what a struct has
// no field for, so the document is decoded into structs that have its tables, down to one level more each time, and
// none of its keys.
func locate(src []byte, values map[string]any) (all []place) {
	for depth := range 3 {
		d := toml.NewDecoder(bytes.NewReader(src)).DisallowUnknownFields()
		var missing *toml.StrictMissingError
		if !errors.As(d.Decode(reflect.New(shape(values, depth)).Interface()), &missing) {
			continue
		}
		var level []place
		for _, e := range missing.Errors {
			line, col := e.Position()
			p := place{strings.Join(e.Key(), "."), offset(src, line, col)}
			if i := after(all, p.start); i > 0 && !has(values, e.Key()) { // in an inline table, whose name go-toml leaves out
				p.path = all[i-1].path + "." + p.path
			}
			level = append(level, p)
		}
		all = append(all, level...)
		slices.SortStableFunc(all, func(a, b place) int { return cmp.Compare(a.start, b.start) })
	}
	return all
}

// after is the index of the first place that does not begin before start.
func after(all []place, start int) int {
	i, _ := slices.BinarySearchFunc(all, start, func(p place, start int) int { return cmp.Compare(p.start, start) })
	return i
}

// shape is a struct type with the tables of values, down to depth, and without their keys.
func shape(values map[string]any, depth int) reflect.Type {
	var fields []reflect.StructField
	for name, v := range values {
		if t, ok := v.(map[string]any); ok && depth > 0 && bare.MatchString(name) {
			fields = append(fields, reflect.StructField{Name: fmt.Sprintf("T%d", len(fields)), Type: shape(t, depth-1),
				Tag: reflect.StructTag(`toml:"` + name + `"`)})
		}
	}
	return reflect.StructOf(fields)
}

func has(values map[string]any, key []string) bool {
	v, ok := values[key[0]]
	if t, table := v.(map[string]any); ok && table && len(key) > 1 {
		return has(t, key[1:])
	}
	return ok
}

// offset is that of a line and a column in bytes, both from 1.
func offset(src []byte, line, col int) int {
	start := 0
	for range line - 1 {
		start += bytes.IndexByte(src[start:], '\n') + 1
	}
	return min(start+max(0, col-1), len(src))
}

// keySpan is the key of that path, with all of its parts, or the name in a header; ok is false where it is not known.
func (c *Config) keySpan(path string) (s span, header, ok bool) {
	i := slices.IndexFunc(c.places, func(p place) bool { return p.path == path })
	if i < 0 {
		i = slices.IndexFunc(c.places, func(p place) bool { return strings.HasPrefix(p.path, path+".") })
	}
	if i < 0 {
		return s, false, false
	}
	s.start = c.places[i].start
	for s.end = s.start; s.end < len(c.src) && !bytes.ContainsRune([]byte("=]\n"), rune(c.src[s.end])); s.end++ {
		if q := c.src[s.end]; q == '"' || q == '\'' {
			s.end += quotedLen(c.src[s.end:]) - 1
		}
	}
	header = s.end < len(c.src) && c.src[s.end] == ']'
	s.end = s.start + len(bytes.TrimRight(c.src[s.start:s.end], " \t"))
	return s, header, true
}

// valueSpan is the value of a key, as far as it stands in one line; of a table with a header that.
func (c *Config) valueSpan(path string) (span, bool) {
	s, header, ok := c.keySpan(path)
	if header {
		return span{max(0, s.start-1), min(s.end+1, len(c.src))}, true
	}
	for s.start = s.end; ok && s.start < len(c.src) && strings.IndexByte(" \t=", c.src[s.start]) >= 0; s.start++ {
	}
	return span{s.start, valueEnd(c.src, s.start)}, ok
}

// valueEnd is the end of the value that begins at start, or of its line.
func valueEnd(src []byte, start int) int {
	depth := 0
	for i := start; i < len(src); i++ {
		switch b := src[i]; {
		case b == '\n' || b == '\r':
			return i
		case b == '"' || b == '\'':
			i += quotedLen(src[i:]) - 1
			if depth == 0 {
				return i + 1
			}
		case b == '[' || b == '{':
			depth++
		case depth > 0 && (b == ']' || b == '}'):
			if depth--; depth == 0 {
				return i + 1
			}
		case depth == 0 && strings.IndexByte(" \t,#]}=", b) >= 0:
			return i
		}
	}
	return len(src)
}

// quotedLen is the length of the string with which text begins, as far as its line.
func quotedLen(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\n':
			return i
		case '\\':
			if text[0] == '"' {
				i++
			}
		case text[0]:
			return i + 1
		}
	}
	return len(text)
}

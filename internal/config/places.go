package config

import (
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// A place is the position of a key or table header, and of its value. A header's value is the name with its brackets.
type place struct {
	path       string // "build.entry_point", "build"
	key, value span
}

// locate returns the places of all keys and tables in order, up to a syntax error or just over maxKeys.
func locate(src []byte) (all []place) {
	var p unstable.Parser
	p.Reset(src)
	table := ""
	for p.NextExpression() && len(all) <= maxKeys {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			path, name := keyOf(e)
			all = append(all, place{path, name, span{max(0, name.start-1), min(name.end+1, len(src))}})
			table = path + "."
		case unstable.KeyValue:
			all = append(all, locateValue(src, table, e)...)
		}
	}
	return all
}

// locateValue returns the place of a key and the places of keys in its value. table is the path prefix.
func locateValue(src []byte, table string, e *unstable.Node) []place {
	name, key := keyOf(e)
	p := place{table + name, key, span{key.end, int(e.Raw.Offset + e.Raw.Length)}}
	for strings.IndexByte(" \t=", src[p.value.start]) >= 0 {
		p.value.start++
	}
	all := []place{p}
	if v := e.Value(); v.Kind == unstable.InlineTable {
		for it := v.Children(); it.Next(); {
			if it.Node().Kind == unstable.KeyValue {
				all = append(all, locateValue(src, p.path+".", it.Node())...)
			}
		}
	}
	return all
}

// keyOf returns the complete dotted key of a value, or the name of a table.
func keyOf(e *unstable.Node) (path string, s span) {
	var parts []string
	for it := e.Key(); it.Next(); {
		part := it.Node()
		if parts = append(parts, string(part.Data)); len(parts) == 1 {
			s.start = int(part.Raw.Offset)
		}
		s.end = int(part.Raw.Offset + part.Raw.Length)
	}
	return strings.Join(parts, "."), s
}

// place returns the place of the key or table at path, or of the first one below it.
func (c *Config) place(path string) (place, bool) {
	i := slices.IndexFunc(c.places, func(p place) bool { return p.path == path })
	if i < 0 {
		i = slices.IndexFunc(c.places, func(p place) bool { return strings.HasPrefix(p.path, path+".") })
	}
	if i < 0 {
		return place{}, false
	}
	return c.places[i], true
}

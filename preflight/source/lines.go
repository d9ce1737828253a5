package source

import (
	"slices"
	"strings"
)

// A region says whether a line of C++ is compiled.
type region uint8

const (
	plain       region = iota
	conditional        // under an #if whose condition is not a literal, other than an include guard
	dead               // under #if 0
)

// An include is one #include.
type include struct {
	name   string
	angle  bool // in <>
	pos    int  // of the #
	region region
}

// A text is C++ without its comments: of the same length, so that offsets hold.
type text struct {
	code     string
	regions  []region // of each line
	starts   []int    // offset of each line
	includes []include
}

// readText reads what lexCPP leaves out: preprocessor lines, and where they lead. It accepts any bytes.
func readText(src string) *text {
	t := &text{code: blankComments(src)}
	count := 1 + strings.Count(src, "\n")
	t.regions, t.starts = make([]region, 0, count), make([]int, 0, count)
	type open struct{ own region }
	var stack []open
	guard := "" // the name of an #ifndef that may be an include guard
	guarded := false
	now := func() region {
		r := plain
		for _, o := range stack[max(0, len(stack)-maxScopes):] {
			r = max(r, o.own)
		}
		return r
	}
	first := true // no code or directive so far
	current := plain
	pos := 0
	for line := range strings.Lines(t.code) {
		t.starts = append(t.starts, pos)
		trimmed := strings.TrimLeft(line, " \t\r\n")
		if strings.HasPrefix(trimmed, "#") {
			trimmed = strings.TrimSpace(trimmed)
			body := strings.TrimLeft(trimmed[1:], " \t")
			n := word(body, 0)
			name, rest := body[:n], strings.TrimSpace(body[n:])
			switch name {
			case "if", "ifdef", "ifndef":
				o := open{own: conditional}
				switch {
				case name == "if" && (rest == "0" || rest == "false"):
					o.own = dead
				case name == "if" && (rest == "1" || rest == "true"):
					o.own = plain
				case name == "ifndef" && first:
					guard = rest
				}
				if len(stack) < 4*maxScopes {
					stack = append(stack, o)
				}
			case "define":
				if guard != "" && !guarded && len(stack) == 1 && (rest == guard || strings.HasPrefix(rest, guard+" ")) {
					stack[0].own, guarded = plain, true
				}
				guard = ""
			case "else", "elif", "elifdef", "elifndef":
				if len(stack) > 0 {
					if o := &stack[len(stack)-1]; o.own == dead {
						o.own = plain
					} else if o.own == plain {
						o.own = dead
					}
				}
			case "endif":
				if len(stack) > 0 {
					stack = stack[:len(stack)-1]
				}
			}
			current = now()
			if name == "include" || name == "include_next" {
				t.include(rest, pos+strings.IndexByte(line, '#'), current)
			}
		}
		t.regions = append(t.regions, current)
		first = first && trimmed == ""
		pos += len(line)
	}
	return t
}

func (t *text) include(rest string, pos int, r region) {
	if len(rest) < 2 {
		return
	}
	end := byte('"')
	if rest[0] == '<' {
		end = '>'
	} else if rest[0] != '"' {
		return
	}
	if n := strings.IndexByte(rest[1:], end); n > 0 {
		t.includes = append(t.includes, include{name: rest[1 : 1+n], angle: end == '>', pos: pos, region: r})
	}
}

// at is the region of an offset.
func (t *text) at(pos int) region {
	line, exact := slices.BinarySearch(t.starts, pos)
	if exact {
		line++
	}
	if line == 0 {
		return plain
	}
	return t.regions[line-1]
}

// blankComments replaces comments with spaces; newlines stay.
func blankComments(src string) string {
	var out []byte
	for i := 0; i < len(src); {
		switch c := src[i]; {
		case c == '"' || c == '\'' && (i == 0 || classes[src[i-1]] == 0):
			if c == '"' && i > 0 && src[i-1] == 'R' {
				i = rawEnd(src, i)
			} else {
				i = quotedEnd(src, i)
			}
		case c == '/' && i+1 < len(src) && (src[i+1] == '/' || src[i+1] == '*'):
			end := skipComment(src, i)
			if out == nil {
				out = []byte(src)
			}
			for ; i < end; i++ {
				if out[i] != '\n' {
					out[i] = ' '
				}
			}
		default:
			i++
		}
	}
	if out == nil {
		return src
	}
	return string(out)
}

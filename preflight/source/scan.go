package source

import (
	"cmp"
	"slices"
	"strings"
)

type tokenKind uint8

const (
	punct   tokenKind = iota // one character
	ident                    // a name
	number                   // a number, or a character in quotes
	str                      // a string with its quotes and prefix
	include                  // the rest of an #include
)

// A token is a piece of C++; pos is its byte offset.
type token struct {
	text  string
	pos   int
	kind  tokenKind
	maybe bool // it stands under an #if, and may not be compiled
}

// scan cuts C++ into tokens, without comments, #if 0 and preprocessor lines other than #include. It accepts any bytes.
// The tokens overwrite those of room, the tokens of a file that is done with, or nil.
func scan(src string, room []token) []token {
	tokens := slices.Grow(room[:0], len(src)/3) // most sources have fewer

	var open []string // the condition of each #if that is open: "0", "guard" for that of a header's guard, or "?"
	add := func(kind tokenKind, from, to int) {
		if !slices.Contains(open, "0") {
			tokens = append(tokens, token{src[from:to], from, kind, slices.Contains(open, "?")})
		}
	}
	fresh := true // nothing but space so far in this line
	for i := 0; i < len(src); {
		start, c := i, src[i]
		switch {
		case strings.IndexByte(" \t\r\v\f\n\\", c) >= 0:
			fresh = fresh || c == '\n'
			i++
			continue
		case strings.HasPrefix(src[i:], "//"):
			i = lineEnd(src, i)
			continue
		case strings.HasPrefix(src[i:], "/*"):
			i = after(src, i+2, "*/")
			continue
		case c == '#' && fresh:
			i = lineEnd(src, i)
			line := strings.TrimLeft(src[start+1:i], " \t")
			word := line[:wordEnd(line, 0)]
			rest, _, _ := strings.Cut(strings.TrimSpace(line[len(word):]), "//")
			open = directive(open, word, strings.TrimSpace(rest), len(tokens) == 0)
			if word == "include" {
				add(include, i-len(line)+len(word), i)
			}
			continue
		case c == '"' || c == '\'':
			i = quotedEnd(src, i)
			kind := number
			if c == '"' {
				kind = str
			}
			add(kind, start, i)
		case '0' <= c && c <= '9':
			for i = wordEnd(src, i); i < len(src) && (src[i] == '.' || src[i] == '\''); {
				i = wordEnd(src, i+1)
			}
			add(number, start, i)
		case letter(c):
			switch i = wordEnd(src, i); {
			case i < len(src) && src[i] == '"' && src[i-1] == 'R' && i-start <= 3:
				paren := strings.IndexByte(src[i:], '(')
				if paren < 0 {
					paren = 0
				}
				i = after(src, i+paren, ")"+src[i+1:i+max(1, paren)]+`"`)
				add(str, start, i)
			case i < len(src) && src[i] == '"' && i-start <= 2:
				i = quotedEnd(src, i)
				add(str, start, i)
			default:
				add(ident, start, i)
			}
		default:
			i++
			add(punct, start, i)
		}
		fresh = false
	}
	return tokens
}

// directive is open behind a preprocessor line.
func directive(open []string, word, rest string, first bool) []string {
	last := len(open) - 1
	switch word {
	case "if":
		return append(open, cmp.Or(map[string]string{"0": "0", "false": "0", "1": "1", "true": "1"}[rest], "?"))
	case "ifdef", "ifndef":
		return append(open, map[bool]string{true: "guard", false: "?"}[first && word == "ifndef"])
	case "else", "elif":
		if last >= 0 {
			open[last] = cmp.Or(map[string]string{"0": "1", "1": "0"}[open[last]], "?")
		}
	case "endif":
		return open[:max(0, last)]
	}
	return open
}

// lineEnd is the end of the line of i, with those that continue it.
func lineEnd(src string, i int) int {
	for i < len(src) && (src[i] != '\n' || src[i-1] == '\\') {
		if strings.HasPrefix(src[i:], "/*") && !strings.HasPrefix(src[i:], "/*/") {
			i = after(src, i+2, "*/")
			continue
		}
		i++
	}
	return i
}

// after is the offset behind what ends there, from i on.
func after(src string, i int, end string) int {
	if n := strings.Index(src[min(i, len(src)):], end); n >= 0 {
		return i + n + len(end)
	}
	return len(src)
}

// quotedEnd is the end of the literal whose quote is at i; a line's end ends it too.
func quotedEnd(src string, i int) int {
	quote := src[i]
	for i++; i < len(src) && src[i] != '\n'; i++ {
		if src[i] == quote {
			return i + 1
		}
		if src[i] == '\\' {
			i++
		}
	}
	return min(i, len(src))
}

func letter(c byte) bool {
	return c == '_' || c == '$' || 'a' <= c|0x20 && c|0x20 <= 'z' || c >= 0x80
}

func wordEnd(src string, i int) int {
	for i < len(src) && (letter(src[i]) || '0' <= src[i] && src[i] <= '9') {
		i++
	}
	return i
}

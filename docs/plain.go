package docs

import (
	"strings"
	"unicode/utf8"
)

// A block of a text. The package supports the Markdown of docs/topics: headings, paragraphs, items that begin with "-
// ", and code indented by four spaces.
type block struct {
	kind byte   // '#', 'p', '-' or 'c'
	text string // without line breaks, except for code
}

func parse(markdown string) (blocks []block) {
	gap := true // a blank line stands before this one
	for line := range strings.Lines(markdown) {
		line = strings.TrimRight(line, " \n")
		last := len(blocks) - 1
		in := func(kind byte) bool { return last >= 0 && blocks[last].kind == kind }
		switch code, indented := strings.CutPrefix(line, "    "); {
		case line == "":
			if in('c') {
				blocks[last].text += "\n"
			}
			gap = true
			continue
		case strings.HasPrefix(line, "<!--"):
			continue
		case indented && in('c'):
			blocks[last].text += code + "\n"
		case indented && gap:
			blocks = append(blocks, block{'c', code + "\n"})
		case strings.HasPrefix(line, "#"):
			blocks = append(blocks, block{'#', plain(strings.TrimLeft(line, "# "))})
		case strings.HasPrefix(line, "- "):
			blocks = append(blocks, block{'-', plain(line[2:])})
		case !gap && (in('p') || in('-')):
			blocks[last].text += " " + plain(strings.TrimSpace(line))
		default:
			blocks = append(blocks, block{'p', plain(line)})
		}
		gap = false
	}
	for i := range blocks {
		blocks[i].text = strings.TrimRight(blocks[i].text, "\n")
	}
	return blocks
}

// plain takes out what only a browser shows: backquotes, stars, and the address behind a link's text.
func plain(s string) string {
	s = strings.NewReplacer("`", "", "**", "").Replace(s)
	for {
		head, rest, ok := strings.Cut(s, "](")
		open := strings.LastIndexByte(head, '[')
		if !ok || open < 0 {
			return s
		}
		address, tail, _ := strings.Cut(rest, ")")
		text := head[open+1:]
		if text != address && !strings.HasPrefix(address, "http") {
			address = strings.TrimLeft(address, "./")
			if !strings.HasSuffix(address, text) {
				text += " (" + address + ")"
			}
		}
		s = head[:open] + text + tail
	}
}

// Plain renders Markdown for a terminal of that many columns.
func Plain(markdown string, width int) string {
	var b strings.Builder
	blocks := parse(markdown)
	for i, bl := range blocks {
		if i > 0 && (bl.kind != '-' || blocks[i-1].kind != '-') {
			b.WriteByte('\n')
		}
		switch bl.kind {
		case '#':
			text := bl.text
			if i == 0 {
				text = strings.ToUpper(text)
			}
			b.WriteString(text + "\n")
		case 'c':
			for line := range strings.SplitSeq(bl.text, "\n") {
				b.WriteString(strings.TrimRight("    "+line, " ") + "\n")
			}
		case '-':
			Wrap(&b, bl.text, "- ", "  ", width)
		default:
			Wrap(&b, bl.text, "", "", width)
		}
	}
	return b.String()
}

// Wrap writes text in lines of at most width columns, if its words allow that.
func Wrap(b *strings.Builder, text, first, others string, width int) {
	line, n := first, len(first)
	for i, word := range strings.Fields(text) {
		size := utf8.RuneCountInString(word)
		if i > 0 {
			if n+1+size > width {
				b.WriteString(line + "\n")
				line, n = others, len(others)
			} else {
				line, n = line+" ", n+1
			}
		}
		line, n = line+word, n+size
	}
	b.WriteString(line + "\n")
}

package manual

import (
	"fmt"
	"strings"
)

// A Section is a part of the man page behind the commands: its text is Markdown, and its heading is not the text's.
type Section struct {
	Title, Text string
}

// Man is the page fisub(1), in roff's man macros, of the program c.
func Man(c *Command, version string, sections []Section) string {
	m := &roff{}
	m.request("TH", strings.ToUpper(c.Name), "1", "", c.Name+" "+version, "User Commands")
	m.request("SH", "NAME")
	m.line(c.Name + ` \- ` + literal(c.Usage))
	m.request("SH", "SYNOPSIS")
	m.line(`.B ` + literal(c.Name))
	m.line(literal("[FLAGS] COMMAND [FLAGS] [ARGUMENTS]"))
	m.request("SH", "DESCRIPTION")
	if len(c.Examples) > 0 {
		m.code(aligned(c.Examples))
	}
	m.text(c.Text)
	m.request("SH", "GLOBAL FLAGS")
	m.flags(c.Global)
	m.request("SH", "COMMANDS")
	for _, sub := range c.All()[1:] {
		m.request("SS", sub.Synopsis())
		m.paragraph(capital(sub.Usage) + ".")
		m.text(sub.Text)
		m.flags(sub.Flags)
		if len(sub.Examples) > 0 {
			m.code(aligned(sub.Examples))
		}
	}
	for _, s := range sections {
		m.request("SH", strings.ToUpper(s.Title))
		for i, b := range parse(s.Text) {
			switch {
			case b.kind == '#' && i == 0: // the title
			case b.kind == '#':
				m.request("SS", b.text)
			case b.kind == 'c':
				m.code(strings.Split(b.text, "\n"))
			case b.kind == '-':
				m.line(`.IP \(bu 2`)
				m.line(literal(b.text))
			default:
				m.paragraph(b.text)
			}
		}
	}
	return m.String()
}

type roff struct {
	strings.Builder
	last string
}

// line writes one, but for a paragraph's begin right behind a heading, which begins one itself.
func (m *roff) line(s string) {
	if s == ".PP" && (strings.HasPrefix(m.last, ".SH ") || strings.HasPrefix(m.last, ".SS ")) {
		return
	}
	m.WriteString(s + "\n")
	m.last = s
}

func (m *roff) request(name string, args ...string) {
	line := "." + name
	for _, arg := range args {
		line += ` "` + strings.ReplaceAll(literal(arg), `"`, `\(dq`) + `"`
	}
	m.line(line)
}

func (m *roff) paragraph(text string) {
	m.line(".PP")
	m.line(literal(text))
}

// text is that of a description: its indented lines keep their form.
func (m *roff) text(s string) {
	var code, prose []string
	flush := func() {
		if len(prose) > 0 {
			m.paragraph(strings.Join(prose, " "))
		}
		if len(code) > 0 {
			m.code(code)
		}
		code, prose = nil, nil
	}
	for line := range strings.SplitSeq(s, "\n") {
		switch {
		case line == "":
			flush()
		case strings.HasPrefix(line, " "):
			if len(prose) > 0 {
				flush()
			}
			code = append(code, strings.TrimPrefix(line, indent))
		default:
			if len(code) > 0 {
				flush()
			}
			prose = append(prose, line)
		}
	}
	flush()
}

func (m *roff) code(lines []string) {
	m.line(".PP")
	m.line(".RS 4")
	m.line(".nf")
	for _, line := range lines {
		m.line(literal(line))
	}
	m.line(".fi")
	m.line(".RE")
}

func (m *roff) flags(flags []Flag) {
	for _, f := range flags {
		m.line(".TP")
		names := make([]string, len(f.Names))
		for i, name := range f.Names {
			names[i] = `\fB` + literal(name) + `\fR`
		}
		head := strings.Join(names, ", ")
		if f.Value != "" {
			head += ` \fI` + literal(f.Value) + `\fR`
		}
		m.line(head)
		text := f.Usage
		if f.Default != "" {
			text += fmt.Sprintf(" (default: %s)", f.Default)
		}
		m.line(literal(text))
	}
}

// literal is s as roff prints it unchanged. Characters that are not ASCII are named, for every roff.
func literal(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case r == '~':
			b.WriteString(`\(ti`)
		case r == '^':
			b.WriteString(`\(ha`)
		case r == '`':
			b.WriteString(`\(ga`)
		case r == '\'' && i > 0:
			b.WriteString(`\(aq`)
		case i == 0 && (r == '.' || r == '\''):
			b.WriteString(`\&` + string(r))
		case r > '~':
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

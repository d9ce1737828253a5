// Package manual renders what fisub says about itself: the command tree as a man page and as Markdown, and the topics of
// `fisub help` on a terminal. It knows neither the commands nor what they do.
package manual

import (
	"fmt"
	"strings"
)

// A Command is one of the program, or the program itself. Only what is visible is in it.
type Command struct {
	Name     string // whole: "fisub remote gc"
	Usage    string // one line
	Args     string // "RUN", "[FILE...]", ""
	Text     string // prose; may be ""
	Examples []Example
	Flags    []Flag // without those that every command has
	Global   []Flag // those; of the program only
	Commands []*Command
}

// An Example is a command line and, where it needs saying, what it does.
type Example struct {
	Line string
	What string
}

// A Flag is one of a command.
type Flag struct {
	Names   []string // with their dashes
	Value   string   // placeholder; "" where the flag takes no value
	Usage   string
	Default string // "" where there is none
}

// String is the flag as it is typed: "-o FILE".
func (f Flag) String() string {
	text := strings.Join(f.Names, ", ")
	if f.Value != "" {
		text += " " + f.Value
	}
	return text
}

// Synopsis is how the command is typed.
func (c *Command) Synopsis() string {
	parts := []string{c.Name}
	if len(c.Flags)+len(c.Global) > 0 {
		parts = append(parts, "[FLAGS]")
	}
	switch {
	case len(c.Commands) > 0 && c.Args != "":
		parts = append(parts, c.Args)
	case len(c.Commands) > 0 && len(c.Examples) > 0: // it does something by itself
		parts = append(parts, "[COMMAND]")
	case len(c.Commands) > 0:
		parts = append(parts, "COMMAND")
	case c.Args != "":
		parts = append(parts, c.Args)
	}
	return strings.Join(parts, " ")
}

// All gives c and the commands below it, in their order.
func (c *Command) All() []*Command {
	all := []*Command{c}
	for _, sub := range c.Commands {
		all = append(all, sub.All()...)
	}
	return all
}

// indent is what stands before an example in a description.
const indent = "   "

// Split takes a description apart: lines of three spaces and "fisub " are examples, and what stands behind two spaces or more
// in them says what they do. The rest is the text.
func Split(description string) (text string, examples []Example) {
	var rest []string
	for line := range strings.Lines(description) {
		line = strings.TrimRight(line, "\n")
		example, ok := strings.CutPrefix(line, indent)
		if !ok || !strings.HasPrefix(example, "fisub ") {
			rest = append(rest, line)
			continue
		}
		command, what, _ := strings.Cut(example, "  ")
		examples = append(examples, Example{Line: command, What: strings.TrimSpace(what)})
	}
	return strings.TrimSpace(strings.Join(rest, "\n")), examples
}

// aligned gives the examples as lines, what they do in one column.
func aligned(examples []Example) []string {
	width := 0
	for _, e := range examples {
		if e.What != "" {
			width = max(width, len(e.Line))
		}
	}
	var lines []string
	for _, e := range examples {
		line := e.Line
		if e.What != "" {
			line = fmt.Sprintf("%-*s   %s", width, e.Line, e.What)
		}
		lines = append(lines, line)
	}
	return lines
}

// generated stands at the top of each file that scripts/docs writes.
const generated = "<!-- Written by `go generate`; edit what it is made of instead. -->\n\n"

// Page is the Markdown page of c and the commands below it.
func Page(c *Command) string {
	var b strings.Builder
	b.WriteString(generated)
	for i, sub := range c.All() {
		heading := "##"
		if i == 0 {
			heading = "#"
		}
		fmt.Fprintf(&b, "%s %s\n\n%s.\n\n    %s\n", heading, sub.Name, escape(capital(sub.Usage)), sub.Synopsis())
		if sub.Text != "" {
			b.WriteString("\n" + markdown(sub.Text))
		}
		if len(sub.Examples) > 0 {
			b.WriteString("\nExamples:\n\n")
			for _, line := range aligned(sub.Examples) {
				b.WriteString("    " + line + "\n")
			}
		}
		if len(sub.Flags) > 0 {
			b.WriteString("\n| flag | meaning | where it is missing |\n|---|---|---|\n")
			for _, f := range sub.Flags {
				fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.ReplaceAll(f.String(), "|", `\|`), cell(f.Usage), cell(f.Default))
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("Flags of all commands are in [README.md](README.md).\n")
	return b.String()
}

// Index is the Markdown page that lists the commands of the program c, and the flags that all of them have.
func Index(c *Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s# Commands\n\n%s.\n\n| command | |\n|---|---|\n", generated, capital(c.Usage))
	for _, sub := range c.Commands {
		fmt.Fprintf(&b, "| [%s](%s) | %s |\n", sub.Name, FileName(sub), cell(sub.Usage))
	}
	b.WriteString("\n## Flags of all commands\n\nThey stand before or behind the command's name, and before its arguments.\n\n| flag | meaning | where it is missing |\n|---|---|---|\n")
	for _, f := range c.Global {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.ReplaceAll(f.String(), "|", `\|`), cell(f.Usage), cell(f.Default))
	}
	return b.String()
}

// FileName is that of the page of c.
func FileName(c *Command) string {
	return strings.ReplaceAll(strings.TrimPrefix(c.Name, "fisub "), " ", "-") + ".md"
}

// markdown turns the text of a description into Markdown: indented lines become code.
func markdown(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		indented := strings.HasPrefix(line, " ")
		if indented != code && line != "" {
			if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n\n") {
				b.WriteString("\n")
			}
			code = indented
		}
		if indented {
			b.WriteString("    " + strings.TrimPrefix(line, indent) + "\n")
		} else {
			b.WriteString(escape(line) + "\n")
		}
	}
	return b.String()
}

// escape keeps Markdown and HTML from reading something into a sentence. Code in backquotes stays.
func escape(s string) string {
	parts := strings.Split(s, "`")
	for i := range parts {
		if i%2 == 0 {
			parts[i] = strings.NewReplacer("<", "&lt;", "*", `\*`, "_", `\_`, "[", `\[`, "~", `\~`).Replace(parts[i])
		}
	}
	return strings.Join(parts, "`")
}

func cell(s string) string { return strings.ReplaceAll(escape(s), "|", `\|`) }

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

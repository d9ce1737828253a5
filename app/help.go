package app

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"fisub/app/flags"
	"fisub/docs"
	"fisub/internal/ui"
	"fisub/internal/usage"
)

// straightPath lists the commands that `fisub` shows without arguments, in the order in which a newcomer needs them.
var straightPath = []struct{ line, what string }{
	{"fisub doctor", "which commands work on this machine, and what is missing?"},
	{"fisub init my-kernel", "create a project that runs"},
	{"fisub check", "is this submission sound? no GPU needed"},
	{"fisub local", "run its workloads here, on the GPU or a virtual one"},
	{"fisub remote --gpu b200", "run them on hosts with GPUs, and bring the results back"},
	{"fisub compare last~1 last", "is the newest run faster than the one before it?"},
	{"fisub report last", "write the newest run as an HTML page"},
	{"fisub pack", "write solution.json as the contest's packer does"},
	{"fisub submit", "tag the tested commit"},
}

//go:embed help.txt
var helpText string

// descriptions returns the long help texts by command, such as "remote attach".
var descriptions = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for part := range strings.SplitSeq("\n"+helpText, "\n# ") {
		words, text, _ := strings.Cut(part, "\n")
		all[words] = strings.TrimRight(text, "\n")
	}
	return all
})

// pathText formats straightPath as examples.
func pathText() string {
	var b strings.Builder
	for _, step := range straightPath {
		fmt.Fprintf(&b, "   %-26s   %s\n", step.line, step.what)
	}
	return b.String()
}

func findCommand(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) && !c.Hidden {
			return c
		}
	}
	return nil
}

func topicNames() []string {
	var names []string
	for _, t := range docs.Topics() {
		names = append(names, t.Name)
	}
	return names
}

const exitText = "Exit status: 0 done, everything passed; 1 fisub failed; 2 wrong usage or invalid input;\n3 a " +
	"workload did not pass, or compare found B slower; 130 interrupted."

// Help is wrapped at the width of the terminal.
func init() {
	printHelp := cli.HelpPrinter
	cli.HelpPrinter = func(w io.Writer, templ string, data any) {
		if !ui.IsTerminal(w) {
			printHelp(w, templ, data)
			return
		}
		var text bytes.Buffer
		printHelp(&text, templ, data)
		_, _ = io.WriteString(w, wrapHelp(text.String(), ui.Width(w)-1))
	}
	stringer := cli.FlagStringer
	cli.FlagStringer = func(f cli.Flag) string { return repeatedFlag.ReplaceAllString(stringer(f), "") }
}

// repeatedFlag matches the second name of a flag that may be repeated, which would widen the column of all flags. Their
// usage says so instead.
var repeatedFlag = regexp.MustCompile(` \[ --[^\]]* \]`)

var columnGap = regexp.MustCompile(`\S\s{2,}`)

// fullLine is the length from which a line of a paragraph continues on the next line.
const fullLine = 100

// wrapHelp wraps help between words at width columns. It joins the lines of a paragraph first. Continuation lines begin
// below the last column of their line. If that column is too far right, its text moves to a line of its own.
func wrapHelp(text string, width int) string {
	var joined []string
	full := false // whether the last line continues
	for line := range strings.SplitSeq(text, "\n") {
		plain := strings.TrimLeft(line, " ")
		if last := len(joined) - 1; full && plain != "" && indentOf(line) == indentOf(joined[last]) {
			joined[last] += " " + plain
		} else {
			joined = append(joined, line)
		}
		full = len(line) >= fullLine && !columnGap.MatchString(plain)
	}
	for i, line := range joined {
		head, indent := "", indentOf(line)
		if gaps := columnGap.FindAllStringIndex(line, -1); len(gaps) > 0 && utf8.RuneCountInString(line) > width {
			if last := gaps[len(gaps)-1]; last[1] <= width/2 {
				indent = last[1]
			} else {
				indent += 4
				head, line = ui.Wrap(line[:last[0]+1], indent, width)+"\n", strings.Repeat(" ", indent)+line[last[1]:]
			}
		}
		joined[i] = head + ui.Wrap(line, indent, width)
	}
	return strings.Join(joined, "\n")
}

func indentOf(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

func (a *app) helpCommand() *cli.Command {
	return &cli.Command{
		Name:      "help",
		Usage:     "explain a command or a topic",
		ArgsUsage: "[COMMAND|TOPIC...]",
		Description: "Topics: " + strings.Join(topicNames(), ", ") + ".\n\n   fisub help verdicts      the statuses, and " +
			"how outputs are judged\n   fisub help remote gc     the same as fisub remote gc --help",
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return cli.ShowAppHelp(c)
			}
			return a.help(c.App.Commands, c.Args().Slice())
		},
	}
}

// helpOfHelp runs before the program's commands. For `fisub help --help` the flag library would print the program's
// help; helpOfHelp prints the help of the command instead, and returns shown(exitOK).
func (a *app) helpOfHelp(commands []*cli.Command, words []string) error {
	flag := func(word string) bool { return word == "--help" || word == "-h" }
	if len(words) == 0 || words[0] != "help" || !slices.ContainsFunc(words, flag) {
		return nil
	}
	if words = slices.DeleteFunc(words[1:], flag); len(words) > 0 {
		return cmp.Or(a.help(commands, words), error(shown(exitOK)))
	}
	cli.HelpPrinter(a.stdout, cli.CommandHelpTemplate, findCommand(commands, "help"))
	return shown(exitOK)
}

func (a *app) help(commands []*cli.Command, words []string) error {
	command := findCommand(commands, words[0])
	topic, err := docs.Find(words[0])
	if err == nil && len(words) == 1 {
		text := docs.Plain(topic.Text, min(ui.Width(a.stdout), 100))
		if command != nil {
			text += fmt.Sprintf("\nfisub %s --help lists the flags.\n", command.Name)
		}
		_, err := io.WriteString(a.stdout, text)
		return err
	}
	if err == nil && command == nil {
		return usage.Errorf("fisub help "+words[0], "help: unexpected argument %q", words[1])
	}
	for i, word := range words {
		if command = findCommand(commands, word); command == nil {
			if i == 0 {
				topics := slices.DeleteFunc(topicNames(), func(name string) bool { return findCommand(commands, name) != nil })
				return usage.Unknown("command or topic", word, append(flags.Commands(commands), topics...))
			}
			return usage.Unknown(words[i-1]+" command", word, flags.Commands(commands))
		}
		commands = command.Subcommands
	}
	return helpOf(a.stdout, words)
}

// helpOf writes the help of the command named by words.
func helpOf(w io.Writer, words []string) error {
	program := (&app{stdout: w, stderr: io.Discard}).cli()
	err := program.Run(append(append([]string{program.Name}, words...), "--help"))
	if errors.Is(err, shown(exitOK)) {
		return nil
	}
	return err
}

// Reference returns the help of all commands as a Markdown page.
func Reference() (string, error) {
	var b strings.Builder
	b.WriteString("# Commands\n\nThe output of `fisub help` for each command. Flags may come before or after " +
		"arguments; every command accepts those\nlisted under Global.\n")
	var add func(words []string, commands []*cli.Command) error
	add = func(words []string, commands []*cli.Command) error {
		var text bytes.Buffer
		if err := helpOf(&text, words); err != nil {
			return err
		}
		help := strings.Replace(text.String(), "VERSION:\n   "+versionText()+"\n\n", "", 1)
		if len(words) > 0 {
			help, _, _ = strings.Cut(help, "\n\n   "+globalCategory)
		}
		fmt.Fprintf(&b, "\n## %s\n\n```text\n%s\n```\n", strings.Join(append([]string{"fisub"}, words...), " "),
			strings.TrimSpace(help))
		for _, c := range commands {
			if !c.Hidden {
				if err := add(append(words[:len(words):len(words)], c.Name), c.Subcommands); err != nil {
					return err
				}
			}
		}
		return nil
	}
	err := add(nil, (&app{}).cli().Commands)
	return b.String(), err
}

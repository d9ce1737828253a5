package explain

import (
	"errors"
	"fmt"
	"strings"

	"fisub/internal/git"
)

// A PushError is a push that failed after the tag was made.
type PushError struct {
	Err         error
	Remote, Tag string
}

func (e *PushError) Error() string { return e.Err.Error() }
func (e *PushError) Unwrap() error { return e.Err }

// A sign is what one of the words in git's complaint means.
type sign struct{ words, hint string }

// pushSigns are about a push, with the tag made already. What helps where %s stands in a hint is to push again.
var pushSigns = []sign{
	{"already exists", "it is never overwritten: git fetch --tags, then give the tag another name: tag in [submit] of " +
		"config.toml"},
	{"could not read username|authentication failed|terminal prompts disabled|permission denied|publickey|403|401",
		"the tag is made here; log in to the remote, then: %s"},
	{"hook declined|pre-receive|pre-push", "the tag is made here, and a hook refused it; when that is mended: %s"},
	{"could not resolve|could not connect|timed out|unable to access|connection",
		"the tag is made here; when the network is back: %s"},
	{"", "the tag is made here; to try again: %s"},
}

var gitSigns = []sign{
	{"tell me who you are|empty ident", "git config --global user.name NAME && git config --global user.email ADDRESS"},
	{"dubious ownership", "another user owns the folder: git config --global --add safe.directory FOLDER"},
	{"gpg", "git signs tags here, as tag.gpgSign says; git config tag.gpgSign false makes plain ones"},
}

func read(signs []sign, text string) string {
	text = strings.ToLower(text)
	for _, s := range signs {
		for word := range strings.SplitSeq(s.words, "|") {
			if strings.Contains(text, word) {
				return s.hint
			}
		}
	}
	return ""
}

// gitHint is the hint for an error of git, or "".
func gitHint(err error) string {
	var pushed *PushError
	var failed *git.Error
	switch {
	case errors.As(err, &pushed):
		again := fmt.Sprintf("git push %s refs/tags/%s", pushed.Remote, pushed.Tag)
		return strings.ReplaceAll(read(pushSigns, pushed.Error()), "%s", again)
	case errors.Is(err, git.ErrMissing):
		return "install git"
	case errors.Is(err, git.ErrNoRepository):
		return "git init makes it one"
	case errors.As(err, &failed):
		return read(gitSigns, failed.Text)
	}
	return ""
}

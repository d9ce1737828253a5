package host

import "time"

// SetSilence changes silence until restore is called.
func SetSilence(d time.Duration) (restore func()) {
	before := silence
	silence = d
	return func() { silence = before }
}

// Connections returns the number of connections started so far.
func (s *SSH) Connections() int { return s.number }

// SetShellTime changes shellTime until restore is called.
func SetShellTime(d time.Duration) (restore func()) {
	before := shellTime
	shellTime = d
	return func() { shellTime = before }
}

// Forced returns the text of the error for an account that ran another command, which printed stderr and stdout.
func (s *SSH) Forced(stderr, stdout string) string { return s.forced(stderr, stdout).Error() }

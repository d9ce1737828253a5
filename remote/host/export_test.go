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

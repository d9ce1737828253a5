package host

import "time"

// SetSilence changes how long a host waits for a word of the client, until restore is called.
func SetSilence(d time.Duration) (restore func()) {
	before := silence
	silence = d
	return func() { silence = before }
}

// Connections tells how many the host has begun.
func (s *SSH) Connections() int { return s.number }

// SetShellTime changes how long a login shell may take, until restore is called.
func SetShellTime(d time.Duration) (restore func()) {
	before := shellTime
	shellTime = d
	return func() { shellTime = before }
}

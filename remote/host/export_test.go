package host

import "time"

// SetSilence changes how long a host waits for a word of the client, until restore is called.
func SetSilence(d time.Duration) (restore func()) {
	before := silence
	silence = d
	return func() { silence = before }
}

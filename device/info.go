package device

import "fisub/internal/event"

// Descriptions of a device, and of what happens on it, are part of the format of events.
type (
	Info       = event.Device
	Activity   = event.Activity
	Stamp      = event.Stamp
	Reading    = event.Reading
	During     = event.During
	GPUProcess = event.GPUProcess
)

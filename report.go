package nstance

import "time"

// A Report is what an agent says about its machine, once a report interval.
type Report struct {
	Version           string             `json:"version"`            // of the report's format
	Software          string             `json:"software,omitempty"` // version of the agent's program; empty: it is older than 0.3
	InstanceID        InstanceID         `json:"instance_id"`
	Sequence          uint64             `json:"sequence"` // grows within a session
	Timestamp         time.Time          `json:"timestamp"`
	UptimeSeconds     float64            `json:"uptime_seconds"`
	TerminationNotice *TerminationNotice `json:"termination_notice,omitempty"` // the most urgent of Notices
	OneMinute         Usage              `json:"one_minute"`
	ConfigHash        string             `json:"config_hash,omitempty"` // runtime hash last applied
	Notices           []Notice           `json:"notices,omitempty"`     // that stand, and withdrawn ones until that is acknowledged
	Probes            []ProbeResult      `json:"probes,omitempty"`
	CanDrain          bool               `json:"can_drain,omitempty"`      // the agent has a drain hook
	Files             []FileStatus       `json:"files,omitempty"`          // every file that the server sent
	FilesError        string             `json:"files_error,omitempty"`    // why the last file set was not applied, or the output of its command
	MetadataError     string             `json:"metadata_error,omitempty"` // why the cloud's metadata service cannot be read: notices are missed; empty: it can be
}

// TerminationNotice is the short form of a notice in a report.
type TerminationNotice struct {
	Action   string    `json:"action"`
	Deadline time.Time `json:"deadline,omitzero"`
}

// Usage is averaged over the last minute, or since start if that is shorter.
// Percentages run from 0 to 100 over all processors.
type Usage struct {
	CPUPercent    float64 `json:"cpu_usage"`
	MemoryPercent float64 `json:"memory_usage"`
	DiskPercent   float64 `json:"disk_usage"`
	Load          float64 `json:"load"`
}

// A ProbeResult is the outcome of one user-defined probe.
type ProbeResult struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Message string `json:"message,omitempty"` // at most 256 bytes
}

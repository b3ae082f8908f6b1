// Package figures writes what the programs under bench have measured.
package figures

import (
	"encoding/json"
	"os"
)

// Save writes figures to a file as JSON. Without a name it does nothing.
func Save(file string, what any) error {
	if file == "" {
		return nil
	}
	data, err := json.MarshalIndent(what, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

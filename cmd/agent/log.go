// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"io"
	"log/slog"
)

// Values of --log-format.
const (
	formatText = "text"
	formatJSON = "json"
)

// newLogger returns a logger for valid values of --log-level and --log-format.
func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, err
	}
	options := &slog.HandlerOptions{Level: l}
	if format == formatJSON {
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return slog.New(slog.NewTextHandler(w, options)), nil
}

// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// Spec returns the programs and the maps that they declare, not loaded: for
// measurements, which load them with maps of their own. What is returned is the
// caller's to change.
func Spec() (*ebpf.CollectionSpec, error) {
	spec, err := loadPrograms()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	return spec, nil
}

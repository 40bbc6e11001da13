// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// RegisterMetrics registers metrics of a module, if there is a registry.
func RegisterMetrics(r prometheus.Registerer, all ...prometheus.Collector) error {
	if r == nil {
		return nil
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

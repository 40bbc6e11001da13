// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	otlpTimeout  = 10 * time.Second
	otlpMaxReply = 1 << 16
)

// otlp sends records as OpenTelemetry logs, by OTLP/HTTP with protobuf. It reads the files of
// certificates when it connects, and again after each failure, and headers each time.
type otlp struct {
	config   Config
	endpoint string
	client   *http.Client // nil: to be made
	node     string
	encoder  logEncoder
}

func newOTLP(config Config, node string) (*otlp, error) {
	endpoint, err := parseEndpoint(config.LedgerOTLPEndpoint)
	if err != nil {
		return nil, err
	}
	return &otlp{config: config, endpoint: endpoint.String(), node: node}, nil
}

// write implements output. What the server refuses for good is lost.
func (o *otlp) write(ctx context.Context, records []Record) (done, lost int, err error) {
	response, err := o.post(ctx, o.encoder.request(records, o.node))
	if err != nil {
		return 0, 0, fmt.Errorf("send logs of the ledger: %w", err)
	}
	defer response.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(response.Body, otlpMaxReply))
	switch code := response.StatusCode; {
	case err != nil && code/100 == 2:
		return len(records), 0, nil // it has them
	case code/100 == 2:
		return len(records), min(rejected(reply), len(records)), nil
	// OTLP says that what is refused for want of a right is not to be sent again. But it is the
	// files that are wrong, and not the records.
	case code == http.StatusUnauthorized, code == http.StatusForbidden,
		code == http.StatusTooManyRequests, code == http.StatusBadGateway,
		code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return 0, 0, fmt.Errorf("send logs of the ledger to %s: %s", o.endpoint, response.Status)
	default: // as OTLP says, it is not to be sent again
		return len(records), len(records),
			fmt.Errorf("send logs of the ledger to %s: refused: %s", o.endpoint, response.Status)
	}
}

// post sends a request, and gives up the connection if that fails.
func (o *otlp) post(ctx context.Context, body []byte) (*http.Response, error) {
	headers, err := o.config.headers()
	if err != nil {
		return nil, err
	}
	if o.client == nil {
		if o.client, err = o.config.newClient(); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(
		ctx, http.MethodPost, o.endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header = headers
	request.Header.Set("Content-Type", "application/x-protobuf")
	response, err := o.client.Do(request)
	if err != nil {
		_ = o.close()
		return nil, o.config.explain(err)
	}
	return response, nil
}

func (o *otlp) close() error {
	if o.client != nil {
		o.client.CloseIdleConnections()
		o.client = nil
	}
	return nil
}

// rejected returns how many records an ExportLogsServiceResponse says were refused: the first
// field of its first field.
func rejected(reply []byte) int {
	partial := field(reply, protowire.BytesType)
	message, n := protowire.ConsumeBytes(partial)
	if n < 0 {
		return 0
	}
	count, n := protowire.ConsumeVarint(field(message, protowire.VarintType))
	if n < 0 || int64(count) < 0 {
		return 0
	}
	return int(min(count, 1<<31))
}

// field returns a message from the value of its first field on, nil if it has none of the type.
func field(message []byte, wanted protowire.Type) []byte {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		if message = message[n:]; number == 1 && kind == wanted {
			return message
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return nil
		}
		message = message[n:]
	}
	return nil
}

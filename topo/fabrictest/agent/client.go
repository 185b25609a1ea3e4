package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// ExitError is the error of a program that ran and failed.
type ExitError struct{ Reason string }

// Error returns the reason.
func (e *ExitError) Error() string { return e.Reason }

// Run asks the agent at an address for a command, and copies the program's output. client has the transport to the
// agent with a [Config]. The program ends with ctx.
func Run(ctx context.Context, client *http.Client, address string, command *Command, out io.Writer) error {
	body, err := json.Marshal(command)
	if err != nil {
		return fmt.Errorf("encode the command: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("agent %s: %w", address, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("agent %s: %w", address, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
		return fmt.Errorf("agent %s: %s: %s", address, response.Status, strings.TrimSpace(string(text)))
	}
	if _, err := io.Copy(out, response.Body); err != nil {
		return fmt.Errorf("agent %s: %w", address, err)
	}
	switch outcome := response.Trailer.Get(exitHeader); outcome {
	case succeeded:
		return nil
	case "":
		return fmt.Errorf("agent %s: the answer has no end", address)
	default:
		return &ExitError{outcome}
	}
}

package mxcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/internal/hostfile"
)

const (
	// maxOutput bounds one answer, in bytes; sixteen GPUs print 8 KiB.
	maxOutput = 256 << 10
	// pauseAfterFailure is how many scans do without a tool that failed.
	pauseAfterFailure = 9
)

// errNoTool means that mx-smi is not installed.
var errNoTool = errors.New("mx-smi is not installed")

// tool is mx-smi of a driver's installation.
type tool struct {
	// root is where this process sees the installation.
	root    string
	timeout time.Duration
}

// path finds the tool where public images and installations have it.
func (t tool) path() (string, error) {
	for _, name := range []string{
		"opt/mxdriver/bin/mx-smi", "opt/maca/bin/mx-smi", "usr/local/bin/mx-smi", "usr/bin/mx-smi",
	} {
		path, err := hostfile.Path(t.root, name)
		if err != nil {
			return "", fmt.Errorf("find mx-smi: %w", err)
		}
		info, err := os.Stat(path)
		switch {
		case err == nil && info.Mode().IsRegular():
			return path, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("find mx-smi: %w", err)
		}
	}
	return "", fmt.Errorf("%w below %s", errNoTool, t.root)
}

// answer is the output of the tool, or why it has none.
type answer struct {
	text string
	err  error
}

// ask puts questions, at once, and returns the answers in order. It may block longer
// than the tool's timeout, where the kernel does not let a call end.
func (t tool) ask(questions ...[]string) ([]answer, error) {
	path, err := t.path()
	if err != nil {
		return nil, err
	}
	answers := make([]answer, len(questions))
	done := make(chan struct{})
	for i, arguments := range questions {
		go func() {
			defer func() { done <- struct{}{} }()
			answers[i].text, answers[i].err = t.run(path, arguments)
		}()
	}
	for range questions {
		<-done
	}
	return answers, nil
}

func (t tool) run(path string, arguments []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, arguments...)
	var libraries []string
	for _, dir := range []string{"opt/mxdriver/lib", "opt/maca/lib"} {
		if dir, err := hostfile.Path(t.root, dir); err == nil {
			libraries = append(libraries, dir)
		}
	}
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + strings.Join(libraries, ":")}
	out := limited{left: maxOutput}
	cmd.Stdout, cmd.WaitDelay = &out, gpu.ToolTimeout/10
	err := cmd.Run()
	switch {
	case out.left < 0:
		return "", fmt.Errorf("it printed more than %d bytes", maxOutput)
	case ctx.Err() != nil:
		return "", fmt.Errorf("it did not answer in %s", t.timeout)
	case err != nil:
		return "", fmt.Errorf("it failed: %w", err)
	}
	return out.text.String(), nil
}

// limited is a buffer that ends a program which prints too much. It embeds no buffer,
// with a ReadFrom that would take all.
type limited struct {
	text bytes.Buffer
	left int
}

// Write implements [io.Writer].
func (l *limited) Write(b []byte) (int, error) {
	if l.left -= len(b); l.left < 0 {
		return 0, errors.New("too much")
	}
	return l.text.Write(b)
}

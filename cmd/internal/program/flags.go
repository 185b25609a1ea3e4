package program

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"

	"k8s.io/klog/v2"
)

// Flags are those of every daemon.
type Flags struct {
	// Config is a directory with the ConfigMap's keys as files, or empty.
	Config string
	// Kubeconfig is a file; empty means the pod's service account.
	Kubeconfig string
	// Version asks for the version alone.
	Version bool

	logFormat string
	logLevel  slog.Level
}

// RegisterFlags adds them to a set.
func (f *Flags) RegisterFlags(fs *flag.FlagSet) {
	fs.StringVar(&f.Config, "config", "", "directory with the ConfigMap's keys as files; empty: built-in defaults")
	fs.StringVar(&f.Kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig; empty: the pod's service account")
	fs.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fs.TextVar(&f.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	fs.BoolVar(&f.Version, "version", false, "print the version and exit")
}

// Parse reads args into a set that has these flags, and checks them and, unless
// only the version is asked for, what else there is. It fails with
// [flag.ErrHelp], or with [ErrUsage] after it has told the set's output why.
func (f *Flags) Parse(fs *flag.FlagSet, args []string, check func() error) error {
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return ErrUsage
	}
	if err := f.check(fs, check); err != nil {
		fmt.Fprintf(fs.Output(), "%s: %v\n", fs.Name(), err)
		return ErrUsage
	}
	return nil
}

func (f *Flags) check(fs *flag.FlagSet, more func() error) error {
	switch {
	case fs.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case f.logFormat != "text" && f.logFormat != "json":
		return fmt.Errorf("--log-format: %q is neither text nor json", f.logFormat)
	case f.Version:
		return nil
	}
	return more()
}

// Logger makes the daemon's log, which is client-go's too.
func (f *Flags) Logger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: f.logLevel}
	var h slog.Handler = slog.NewTextHandler(w, o)
	if f.logFormat == "json" {
		h = slog.NewJSONHandler(w, o)
	}
	log := slog.New(h)
	klog.SetSlogLogger(log)
	return log
}

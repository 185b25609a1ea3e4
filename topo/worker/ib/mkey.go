package ib

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// If the subnet manager of a fabric sets an M_Key with protect bits 2 or 3, a node drops every SMP
// without the key and does not answer (InfiniBand Architecture 1.4, 14.2.4). Keys are the folder at
// which a Secret is mounted: one file for each fabric.
type keys string

// anyFabric is the file for fabrics without a file of their name.
const anyFabric = "default"

// mkey is a fabric's, with the file that it is from; zero for none.
type mkey struct {
	value uint64
	file  string
}

// of returns the key of the fabric with a subnet prefix. It is read for every pass, so
// a changed Secret needs no restart.
func (k keys) of(subnet string) (mkey, error) {
	if k == "" {
		return mkey{}, nil
	}
	for _, file := range []string{subnet, anyFabric} {
		if file == "" || file != filepath.Base(file) {
			continue
		}
		value, err := readKey(filepath.Join(string(k), file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return mkey{}, fmt.Errorf("M_Key %s: %w", file, err)
		}
		return mkey{value, file}, nil
	}
	return mkey{}, nil
}

// maxKey is the longest file that is read, in bytes.
const maxKey = 64

func readKey(path string) (uint64, error) {
	f, err := os.Open(path)
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return 0, at.Err // The path is a container's.
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKey))
	if err != nil {
		return 0, err
	}
	text := strings.TrimPrefix(strings.ToLower(strings.TrimSpace(string(b))), "0x")
	value, err := strconv.ParseUint(text, 16, 64)
	if err != nil { // Which has the text in it, and that is secret.
		return 0, errors.New("it is not a number of 1 to 16 hexadecimal digits")
	}
	return value, nil
}

// blame states why SMPs may be rejected or go unanswered.
func (k mkey) blame(err error) error {
	switch {
	case !errors.Is(err, errStatus) && !errors.Is(err, errNoAnswer):
		return err
	case k.file != "":
		return fmt.Errorf("%w; is the M_Key of file %s this fabric's?", err, k.file)
	case errors.Is(err, errNoAnswer):
		return fmt.Errorf("%w; if an M_Key protects the fabric, name it in the worker's Secret", err)
	}
	return err
}

package devicestate

import ()

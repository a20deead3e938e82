// lib/base: what everything else stands on. This header is the folder's front door.
//
//   Result<T>, Error   errors are values below the command line; nothing here throws
//   caught()           what a library throws becomes one
//   Deadline           a point in time by which a call must return
//   View               a typed, shaped, non-owning window onto memory of some device
//   Device             where memory and streams come from: host(), later cuda()
//   Stream, Event      work in order; a point in that order that others can wait for
//   Arena              one block of memory, sized before anything runs, handed out by name
//   Trace              spans of time for a trace viewer
//   Fd                 a file descriptor; read_fully, write_fully
//   Digest             XXH3-128
//   bf16_of, float_of   bf16, the upper half of an f32
//   words(), one_line()   text from users and files: its words, and fit for a message
//   philox()           counter-based random numbers: no state to save, none to lose
#pragma once

#include "base/arena.h"
#include "base/bf16.h"
#include "base/caught.h"
#include "base/device.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/philox.h"
#include "base/printable.h"
#include "base/result.h"
#include "base/text.h"
#include "base/time.h"
#include "base/trace.h"
#include "base/view.h"
